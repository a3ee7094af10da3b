"""Whom a played pod belongs to: in a cluster JobSet makes batch Jobs, and the controller of those makes the pods."""

from __future__ import annotations

from uuid import NAMESPACE_OID, uuid5

from nvcre_kube.resources import JsonObject


def batch_job(name: str) -> JsonObject:
    uid = str(uuid5(NAMESPACE_OID, name))
    return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
