"""Is a string of the `format` that a schema names?  Only the formats that a kube-apiserver knows; others always pass.

Rules: k8s.io/kube-openapi `pkg/validation/strfmt`; the list of supported names: k8s.io/apiextensions-apiserver
`pkg/apiserver/validation/formats.go`, v0.36. Formats of numbers are bounds, see `values`. Not checked here though known
there: email, hostname, isbn*, creditcard, ssn, colours, bsonobjectid.
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date
from urllib.parse import urlsplit

_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})", re.IGNORECASE)
_GO_DURATION = re.compile(r"[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)")
_SCALA_DURATION = re.compile(
    r"[0-9]+\s*(ns|nano|us|µs|micro|ms|milli|s|sec|m|min|h|hr|hour|d|day|w|week|wk)", re.IGNORECASE
)
_UUID = "[0-9a-f]{8}-?[0-9a-f]{4}-?%s[0-9a-f]{3}-?%s[0-9a-f]{3}-?[0-9a-f]{12}"
_MAC = re.compile(
    r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}|[0-9a-f]{2}([:-][0-9a-f]{2}){7}|([0-9a-f]{4}\.){2,3}[0-9a-f]{4}", re.I
)
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LONG_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def matches(name: str, text: str) -> bool:
    check = _CHECKS.get(name.replace("-", "") if not name.startswith("k8s-") else name)
    return check is None or check(text)


def _is_date_time(text: str) -> bool:
    day, found, clock = text.lower().partition("t")
    if not found or not _is_date(day.upper()):
        return False
    time = _TIME.fullmatch(clock)
    return time is not None and time[1] <= "23" and time[2] <= "59" and time[3] <= "59"


def _is_date(text: str) -> bool:
    try:
        return len(text) == 10 and date.fromisoformat(text) is not None
    except ValueError:
        return False


def _is_duration(text: str) -> bool:
    return _GO_DURATION.fullmatch(text) is not None or _SCALA_DURATION.search(text) is not None


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _accepts(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return check


def _cidr(text: str) -> object:
    if "/" not in text:
        raise ValueError(text)
    return ipaddress.ip_network(text, strict=False)


def _is_uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme) or text.startswith("/")


def _pattern(source: str) -> Callable[[str], bool]:
    compiled = re.compile(source, re.IGNORECASE)
    return lambda text: compiled.fullmatch(text) is not None


_CHECKS: dict[str, Callable[[str], bool]] = {
    "datetime": _is_date_time,
    "date": _is_date,
    "duration": _is_duration,
    "byte": _is_base64,
    "ipv4": _accepts(ipaddress.IPv4Address),
    "ipv6": _accepts(ipaddress.IPv6Address),
    "cidr": _accepts(_cidr),
    "mac": lambda text: _MAC.fullmatch(text) is not None,
    "uri": _is_uri,
    "uuid": _pattern(_UUID % ("[0-9a-f]", "[0-9a-f]")),
    "uuid3": _pattern(_UUID % ("3", "[0-9a-f]")),
    "uuid4": _pattern(_UUID % ("4", "[89ab]")),
    "uuid5": _pattern(_UUID % ("5", "[89ab]")),
    "k8s-short-name": lambda text: len(text) <= 63 and re.fullmatch(_LABEL, text) is not None,
    "k8s-long-name": lambda text: len(text) <= 253 and _LONG_NAME.fullmatch(text) is not None,
}
