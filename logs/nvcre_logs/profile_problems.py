"""Everything that keeps a LogProfile from being used, each naming its field: for its status, and for who writes one."""

from __future__ import annotations

import msgspec

from nvcre_logs.go_time import LayoutError, compile_layout
from nvcre_logs.patterns import LogProfileError, compile_pattern
from nvcre_logs.profile import LogProfileSpec
from nvcre_logs.training import compile_training

BANDWIDTH_CAPTURES = ("size", "algBW", "busBW")
REQUIRED = {"bandwidth_result": BANDWIDTH_CAPTURES, "network_transport": ("transport",)}

NO_PATTERNS = "spec.patterns is empty, so nothing can be measured"


def problems(spec: LogProfileSpec) -> list[str]:
    """Empty for a profile that works."""
    found = []
    try:
        compile_layout(spec.timestamp.layout)
    except LayoutError as error:
        found.append(f"spec.timestamp.layout: {error}")
    patterns = spec.patterns
    given = [field for field in msgspec.structs.fields(patterns) if getattr(patterns, field.name) is not None]
    if not given:
        found.append(NO_PATTERNS)
    for field in given:
        path, required = f"spec.patterns.{field.encode_name}", REQUIRED.get(field.name, ())
        try:
            compile_pattern(getattr(patterns, field.name), path, required)
        except LogProfileError as error:
            found.append(str(error))
    if patterns.training_step is not None and not found:
        try:
            compile_training("", spec)
        except LogProfileError as error:  # a step that counts nothing
            found.append(str(error))
    return found
