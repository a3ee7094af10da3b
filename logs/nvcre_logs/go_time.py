"""Go reference-time layouts (`2006-01-02 15:04:05.999999`), as LogProfiles hold them, compiled to a parser.

A layout of its own is `unix-ms`, for programs that print milliseconds since 1970 (MLPerf).

Covers what time.Parse of Go accepts for these fields (https://pkg.go.dev/time#pkg-constants): a fraction may follow the
seconds even where the layout has none; a layout without a zone means UTC; names of months and days ignore case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

_TOKENS = re.compile(
    r"January|Jan|Monday|Mon|MST|2006|Z07:00|Z0700|Z07|-07:00|-0700|-07|002|_2|01|02|03|04|05|06|15|PM|pm"
    r"|[.,]0+(?![0-9])|[.,]9+(?![0-9])|1|2|3|4|5"
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_ZONE = r"[+-][0-9]{2}:?[0-9]{2}|[+-][0-9]{2}"
_PATTERNS: dict[str, tuple[str, str]] = {
    "January": ("month_name", r"[A-Za-z]{3,9}"),
    "Jan": ("month_name", r"[A-Za-z]{3}"),
    "Monday": ("", r"[A-Za-z]{6,9}"),
    "Mon": ("", r"[A-Za-z]{3}"),
    "MST": ("zone_name", r"[A-Z]{3,5}"),
    "2006": ("year", r"[0-9]{4}"),
    "06": ("short_year", r"[0-9]{2}"),
    "01": ("month", r"[0-9]{2}"),
    "1": ("month", r"[0-9]{1,2}"),
    "02": ("day", r"[0-9]{2}"),
    "2": ("day", r"[0-9]{1,2}"),
    "_2": ("day", r" ?[0-9]{1,2}"),
    "002": ("day_of_year", r"[0-9]{3}"),
    "15": ("hour", r"[0-9]{2}"),
    "03": ("hour12", r"[0-9]{2}"),
    "3": ("hour12", r"[0-9]{1,2}"),
    "04": ("minute", r"[0-9]{2}"),
    "4": ("minute", r"[0-9]{1,2}"),
    "05": ("second", r"[0-9]{2}"),
    "5": ("second", r"[0-9]{1,2}"),
    "PM": ("half", r"[AaPp][Mm]"),
    "pm": ("half", r"[AaPp][Mm]"),
    "Z07:00": ("zone", rf"Z|{_ZONE}"),
    "Z0700": ("zone", rf"Z|{_ZONE}"),
    "Z07": ("zone", rf"Z|{_ZONE}"),
    "-07:00": ("zone", _ZONE),
    "-0700": ("zone", _ZONE),
    "-07": ("zone", _ZONE),
}
_MAX_LAYOUT = 128
UNIX_MS = "unix-ms"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"2006-01-02[T ]15:04:05(?:[.,](?:0+|9+))?")
_FRACTION = r"(?:[.,](?P<fraction>[0-9]{1,9}))?"


class LayoutError(ValueError):
    """The layout has no date or time field, or names one twice."""


@dataclass(frozen=True, slots=True)
class GoTimeParser:
    layout: str
    _pattern: re.Pattern[str]
    is_iso: bool = False  # and without a zone

    def parse_alike(self, text: str) -> datetime | None:
        """Of a text that differs in its digits alone from one that was parsed: as `parse`, and ten times as fast."""
        if not self.is_iso:
            return self.parse(text)
        try:
            return datetime.fromisoformat(f"{text}+00:00")
        except ValueError:
            return None

    def parse(self, text: str) -> datetime | None:
        """The time in UTC, or None where the text does not fit the layout."""
        match = self._pattern.fullmatch(text)
        if match is None:
            return None
        try:
            return _build({name: value for name, value in match.groupdict().items() if value is not None})
        except (ValueError, OverflowError):  # a 30th of February; in its zone the year 1 or 9999, in UTC no time at all
            return None


def compile_layout(layout: str) -> GoTimeParser:
    """Raises LayoutError."""
    if not layout or len(layout) > _MAX_LAYOUT:
        raise LayoutError(f"a layout has 1 to {_MAX_LAYOUT} characters")
    if layout == UNIX_MS:
        return GoTimeParser(layout, re.compile(r"(?P<unix_ms>[0-9]{1,15})"))
    pattern, position = [], 0
    seen: set[str] = set()
    for token in _TOKENS.finditer(layout):
        pattern.append(re.escape(layout[position : token.start()]))
        position = token.end()
        if token[0][0] in ".,":
            if "second" not in seen:
                pattern.append(re.escape(token[0]))
            elif "fraction" not in seen:
                seen.add("fraction")  # the second's own optional fraction already reads it
            continue
        name, regex = _PATTERNS[token[0]]
        if name in seen:
            raise LayoutError(f"layout {layout!r} names the {name.replace('_', ' ')} twice")
        seen.add(name) if name else None
        pattern.append(f"(?P<{name}>{regex})" if name else f"(?:{regex})")
        if name == "second":
            pattern.append(_FRACTION)
    pattern.append(re.escape(layout[position:]))
    if not seen & {"year", "short_year", "month", "month_name", "day", "hour", "hour12", "second"}:
        raise LayoutError(f"layout {layout!r} has no field of Go's reference time Mon Jan 2 15:04:05 MST 2006")
    return GoTimeParser(layout, re.compile("".join(pattern)), _ISO.fullmatch(layout) is not None)


def _build(fields: dict[str, str]) -> datetime:
    if "unix_ms" in fields:
        return _EPOCH + timedelta(milliseconds=int(fields["unix_ms"]))
    year = int(fields["year"]) if "year" in fields else _short_year(fields.get("short_year"))
    month = int(fields.get("month", "1"))
    if "month_name" in fields:
        month = _MONTHS.index(fields["month_name"][:3].lower()) + 1
    hour = int(fields.get("hour", "0"))
    if "hour12" in fields:
        hour = int(fields["hour12"]) % 12 + (12 if fields.get("half", "AM").lower() == "pm" else 0)
    moment = datetime(
        year,
        month,
        int(fields.get("day", "1")),
        hour,
        int(fields.get("minute", "0")),
        int(fields.get("second", "0")),
        int(fields.get("fraction", "0")[:6].ljust(6, "0")),
        tzinfo=_zone(fields.get("zone")),
    )
    if "day_of_year" in fields:
        moment = moment.replace(month=1, day=1) + timedelta(days=int(fields["day_of_year"]) - 1)
    return moment.astimezone(UTC)


def _short_year(text: str | None) -> int:
    """Go: 69 to 99 are 19xx.  A layout without a year gives year 1, which is nobody's intention: 1970."""
    if text is None:
        return 1970
    return int(text) + (1900 if int(text) >= 69 else 2000)


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
