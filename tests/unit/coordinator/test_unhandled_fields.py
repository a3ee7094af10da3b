"""A field that is accepted and does nothing is told."""

from typing import Any

import pytest
from nvcre_coordinator.core.unhandled_fields import unhandled


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, ()),
        ({"startupStallTimeoutSeconds": 1200, "schedulingStallGraceSeconds": 300}, ()),  # the CRD's defaults
        ({"thresholds": {"busBandwidthGBps": "value > 1"}}, ()),
        ({"stallMultiplier": 3}, ("spec.stallMultiplier (stalls are seen only where",)),
        ({"checkpoint": {}, "goodputMeasurement": {}}, ("spec.checkpoint (", "spec.goodputMeasurement (")),
        ({"thresholds": {"goodputRatio": "value > 0.9"}}, ("spec.thresholds.goodputRatio (not measured",)),
    ],
)
def test_what_has_no_effect_is_named(spec: dict[str, Any], told: tuple[str, ...]) -> None:
    sentence = unhandled(spec)
    assert bool(sentence) is bool(told)
    assert all(words in sentence for words in told)
