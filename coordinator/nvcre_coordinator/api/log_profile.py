"""View of LogProfile (daemonset/crds/logprofiles.yaml); what its spec means is nvcre_logs' business."""

from __future__ import annotations

import msgspec
from nvcre_logs.profile import LogProfileSpec

from nvcre_coordinator.api.meta import ObjectMeta


class LogProfile(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: LogProfileSpec
