"""View of LogProfile (daemonset/crds/logprofiles.yaml); what its spec means is nvcre_logs' business."""

from __future__ import annotations

import msgspec
from nvcre_logs.profile import LogProfileSpec

from nvcre_coordinator.api.conditions import Condition
from nvcre_coordinator.api.meta import ObjectMeta


class LogProfileStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    conditions: tuple[Condition, ...] = ()


class LogProfile(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: LogProfileSpec
    status: LogProfileStatus = LogProfileStatus()
