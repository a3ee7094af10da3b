"""What stands before the kernel's own text in a saved line, and who wrote the line.

A line is an onion: a container runtime's time around a syslog header around `kernel:` around `[  123.456]`. Each layer
is peeled by its own shape, from outside in, whatever the tool was (dmesg with any of its options, the journal's text
formats, syslog of both RFCs, raw /dev/kmsg, kubectl, pdsh, serial consoles).

The kernel is believed to have written a line only when a layer says so: facility 0, the tag `kernel`, or the time that
dmesg prints. Another facility, another program's tag or a container's stream mean that somebody else wrote it, whatever
the text is. A line without such a layer is bare; whether that is to be believed depends on the file (saved.py).
"""

import re
from calendar import timegm
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

MAX_LAYERS = 8
_HEAD = 160  # what may stand before the kernel's text
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Writer(Enum):
    KERNEL = "kernel"
    PROCESS = "process"  # a process, through /dev/kmsg, syslog, the journal or its own output
    NOBODY_SAYS = "nobody says"  # bare text


class Clock(Enum):
    UPTIME = "since boot"
    CALENDAR = "calendar"
    YEARLESS = "calendar without a year"


@dataclass(frozen=True, slots=True)
class Stamp:
    """The time of a line as printed."""

    printed: str
    clock: Clock

    @property
    def seconds(self) -> float | None:
        """Seconds of its clock (without a year: of 1972); None where the date cannot be read."""
        try:
            if self.clock is Clock.UPTIME:
                return float(self.printed)
            if (found := _ISO.search(f"{self.printed} ")) is not None:
                zone = found[4] if found[4] and found[4][0] in "+-" else "+00:00"
                return datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}").timestamp()
            return _calendar_seconds(self.printed)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Line:
    writer: Writer
    text: str
    stamp: Stamp | None = None
    in_stream: bool = False  # a container printed it


_ANSI = re.compile(r"\^\[\[[\d;]{0,16}m|\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])")
_OCTAL = re.compile(r"#0([0-3][0-7])")  # how rsyslog writes control characters
_HEXADECIMAL = re.compile(r"\\x([0-9a-fA-F]{2})")  # how the kernel and dmesg write them

_KMSG = re.compile(r"(?:\d{1,2}\.\d{1,3}[\w.+-]{0,64},)?(\d{1,4}),(\d{1,20}),(\d{1,20}),[^;]{0,256};")
_PRIORITY = re.compile(r"<(\d{1,3})>(?:1 (?=\d{4}-))?")
_DECODED = re.compile(r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *: *\w+ *: *")
_UPTIME = re.compile(r"\[ {0,16}(\d{1,12}\.\d{1,9})(?: <[^>]{1,24}>)?\] ?")
_CALLER = re.compile(r"\[ {0,12}[TC]\d{1,10}\] ?")
_MONTH = r"(?:[^\W\d_]{3,6}|\d{1,2}[\u6708\uc6d4])"  # Chinese, Japanese and Korean number theirs
_DATE = rf"({_MONTH})\.? {{1,2}}(\d{{1,2}})"
_HUMAN = re.compile(
    rf"\[(?:[^\W\d_]{{1,4}}\.? )?{_DATE} (\d\d):(\d\d)(?::(\d\d)(?:\.\d{{1,9}})?)?"
    r"(?: [A-Z]{3,5})?(?: (\d{4}))?(?: <[^>]{1,24}>)?\] ?"
)
_BRACKETED_ISO = re.compile(r"\[(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?)\]:? ?")
_RELATIVE = re.compile(r"\[ {0,16}[+<-] {0,16}\d{1,12}\.\d{1,9}>?\] ?")
_RFC3164 = re.compile(rf"{_DATE}(?: (\d{{4}}))? (\d\d):(\d\d):(\d\d)(?:\.\d{{1,9}})?(?: (\d{{4}}))? ")
_DAY_TIME = r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)([.,]\d{1,9})?"
_ISO = re.compile(rf"{_DAY_TIME}(?: ?(Z|UTC|[+-]\d\d:?\d\d))?:? ")
_JOURNAL_FULL = re.compile(rf"[^\W\d_]{{2,4}}\.? {_DAY_TIME} ([A-Z]{{3,5}}|[+-]\d\d(?:\d\d)?) ")
_UNIX = re.compile(r"(\d{9,10}\.\d{3,9}) ")
_STREAM = re.compile(r"(?:stdout|stderr) [FP] ")
_HOST_TAG = re.compile(r"(\S{1,255}) (?:(\w{2,8})\.\w{2,8} )?([\w./@()+-]{1,64})(\[\d{1,10}\])?: ?")
_HOST_PRINTK = re.compile(r"\S{1,255} (?=\[ {0,16}\d{1,12}\.\d|\d{1,4},\d{1,20},\d{1,20},[^;]{0,256};)")
_RELAY = re.compile(rf"\S{{1,255}} (?={_DATE} \d\d:\d\d:\d\d |{_DAY_TIME})")  # which keeps the sender's header
_LABELS = re.compile(r'\{[\w.]{1,128}="[^{}]{0,2048}"\} ')  # of a stream in Loki
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|#39|#34|apos);")
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#34;": '"', "&#39;": "'", "&apos;": "'"}
_DMESG_ISO = re.compile(r":\d\d,\d{6}")  # no other tool writes a comma
_RFC5424_REST = re.compile(
    r"(\S{0,254}[^\s:]) (\S{0,47}[^\s:]) (\S{1,128}) (\S{1,32}) "
    r"(?:-|(?:\[[^\s\]=\"]{1,64}(?: [^\s\]=\"]{1,64}=\"(?:[^\"\\\\]|\\\\.){0,1024}\"){1,32}\])+)(?: |$)\ufeff?"
)
_VMKERNEL_CPU = re.compile(r"cpu\d{1,5}:\d{1,12}(?: opID=\w{1,32})?\)(?:WARNING: |ALERT: )?")
# What stands before whole lines: a host (pdsh, clush, oc), a file (grep), a pod (kubectl, stern), a login prompt.
_OUTSIDE = re.compile(
    r"(?:\[pod/[^\]]{1,512}\] ?|[\w./-]{1,256}:(?:\d{1,9}:)? ?"
    r"|[\w.-]{1,253}(?: [\w.-]{1,253})?? |[\w.-]{1,253} login: |[\w.-]{1,128} {0,64}\| )"
    r"(?=[\[<\d]|[^\W\d_]{3,4}\.? {1,2}\d{1,2} \d\d:|kern *: *\w+ *: )"
)
_KERNEL_TAG = "kernel: "
_KERNEL_TAGS = frozenset({"kernel", "vmkernel", "vmkwarning"})
_KERNEL_WORDS = re.compile(
    r"NVRM: |nvidia(?:-\w{1,16})?[ :]|pcieport |pci \w{4}:|mlx5_|infiniband |EDAC |mce: |Memory (?:cgroup|failure)|"
    r"Out of memory|Killed process|NETDEV |INFO: |\{\d+\}\[Hardware|\[Hardware|Linux version|Command line: |BIOS-|"
    r"ACPI: |smpboot: |usb \d|audit: |EXT4-fs |XFS |nvme |IPv6: |cgroup: |DMAR: |Kernel panic|watchdog: |rcu: |x86/"
)


def looks_like_kernel(text: str) -> bool:
    """Whether a text without a prefix begins as lines of the kernel do."""
    return _KERNEL_WORDS.match(text) is not None


def unwrap(line: str) -> Line:
    """Peel `line`; linear in its length."""
    if "\x1b" in line or "^[[" in line:
        line = _ANSI.sub("", line)
    if not line.isascii():
        line = line.removeprefix("\ufeff").replace("\xa0", " ")  # of files put together, of web pages
    if "\t" in line[:_HEAD]:
        line = line[:_HEAD].replace("\t", " ") + line[_HEAD:]
    peeled = _Peeled(line)
    for _ in range(MAX_LAYERS):
        if not peeled.one_layer() or peeled.done or peeled.writer is Writer.PROCESS:
            break
    if peeled.in_stream and peeled.writer is Writer.NOBODY_SAYS:
        peeled.writer = Writer.PROCESS
    text = peeled.rest
    if peeled.escaped is not None and ("#0" in text or "\\x" in text):
        digits = 16 if peeled.escaped is _HEXADECIMAL else 8
        text = peeled.escaped.sub(lambda found: chr(int(found[1], digits)), text)
    if "&" in text and text.startswith("NVRM: "):  # pasted from a web page
        text = _ENTITY.sub(lambda found: _ENTITIES[found[0]], text)
    return Line(peeled.writer, text, peeled.stamp, peeled.in_stream)


class _Peeled:
    """What is left of a line while its layers come off."""

    def __init__(self, rest: str) -> None:
        self.rest = rest
        self.writer = Writer.NOBODY_SAYS
        self.stamp: Stamp | None = None
        self.escaped: re.Pattern[str] | None = None
        self.in_stream = False
        self.done = False  # the time that the kernel or dmesg printed is the innermost layer
        self._outermost = True

    def one_layer(self) -> bool:
        rest = self.rest
        if not rest:
            return False
        first = rest[0]
        match first:
            case "[":
                found = self._bracket(rest)
            case "<":
                found = self._priority(rest)
            case _ if first.isdigit():
                found = self._digits(rest)
            case _ if first.isalpha():
                found = self._word(rest)
            case _:
                found = False
        if not found and self._outermost and (outside := _OUTSIDE.match(rest)) is not None and outside.end():
            inner = _Peeled(rest[outside.end() :])
            inner._outermost = False
            if inner.one_layer():
                self.rest, found = rest[outside.end() :], True
        self._outermost = False
        return found

    # --- by the first character

    def _bracket(self, rest: str) -> bool:
        if (found := _UPTIME.match(rest)) is not None:
            self.done = True
            after = found.end()
            if (caller := _CALLER.match(rest, after)) is not None:
                after = caller.end()
            self._keep(after, Writer.KERNEL, Stamp(found[1], Clock.UPTIME))
            self._host_and_tag()  # journalctl -o short-monotonic
            return True
        if (found := _HUMAN.match(rest)) is not None:
            self.done = _UPTIME.match(rest, found.end()) is None
            clock = Clock.CALENDAR if found[6] else Clock.YEARLESS
            self._keep(found.end(), Writer.KERNEL, Stamp(found[0].strip("[] "), clock))
            self._host_and_tag()
            return True
        if (found := _BRACKETED_ISO.match(rest)) is not None:
            self._keep(found.end(), None, Stamp(found[1], Clock.CALENDAR))
            return True
        if (found := _RELATIVE.match(rest) or _CALLER.match(rest)) is not None:
            self._keep(found.end(), Writer.KERNEL, None)
            return True
        return False

    def _host_and_tag(self) -> None:
        if self._outermost and (tag := _HOST_TAG.match(self.rest)) is not None and tag[3] in _KERNEL_TAGS:
            self._tag(tag)

    def _priority(self, rest: str) -> bool:
        if (found := _PRIORITY.match(rest)) is None:
            return False
        self._keep(found.end(), _by_facility(int(found[1])), None)
        return True

    def _digits(self, rest: str) -> bool:
        if (found := _KMSG.match(rest)) is not None:
            printed = f"{int(found[3]) / 1e6:.6f}"
            self._keep(found.end(), _by_facility(int(found[1])), Stamp(printed, Clock.UPTIME))
            self.escaped, self.done = _HEXADECIMAL, True
            return True
        if (found := _ISO.match(rest)) is not None:
            self._after_time(found.end(), Stamp(found[0].strip().rstrip(":"), Clock.CALENDAR))
            return True
        if (found := _RFC3164.match(rest)) is not None:
            self._rfc3164(found)
            return True
        if (found := _UNIX.match(rest)) is not None:
            at = datetime.fromtimestamp(float(found[1]), UTC)
            self._after_time(found.end(), Stamp(f"{at:%Y-%m-%dT%H:%M:%S}Z", Clock.CALENDAR))
            return True
        return False

    def _word(self, rest: str) -> bool:
        if (found := _DECODED.match(rest)) is not None:
            self._keep(found.end(), Writer.KERNEL if found[1] == "kern" else Writer.PROCESS, None)
            return True
        if (found := _RFC3164.match(rest)) is not None:
            self._rfc3164(found)
            return True
        if (found := _JOURNAL_FULL.match(rest)) is not None:
            self._after_time(found.end(), Stamp(found[0].strip().rstrip(":"), Clock.CALENDAR))
            return True
        unstamped = self.writer is Writer.KERNEL and self.stamp is None
        if rest.startswith(_KERNEL_TAG) and (self.writer is Writer.NOBODY_SAYS or unstamped) and not self.in_stream:
            self._keep(len(_KERNEL_TAG), Writer.KERNEL, None)
            return True
        return False

    # --- what follows a time

    def _rfc3164(self, found: re.Match[str]) -> None:
        clock = Clock.CALENDAR if found[3] or found[7] else Clock.YEARLESS
        self._after_time(found.end(), Stamp(found[0].strip(), clock))

    def _after_time(self, end: int, stamp: Stamp) -> None:
        self._keep(end, None, stamp)
        rest = self.rest
        if (tag := _HOST_TAG.match(rest)) is not None and tag[3] in _KERNEL_TAGS:
            self._tag(tag)
        elif (relay := _RELAY.match(rest)) is not None:
            self._keep(relay.end(), None, None)
        elif (found := _STREAM.match(rest)) is not None:
            self.in_stream = True
            self._keep(found.end(), None, None)
        elif (found := _VMKERNEL_CPU.match(rest)) is not None:
            self._keep(found.end(), Writer.KERNEL, None)
        elif rest.startswith(_KERNEL_TAG):  # journalctl --no-hostname
            self._keep(len(_KERNEL_TAG), Writer.KERNEL, None)
        elif _DMESG_ISO.search(stamp.printed) is not None:
            self._keep(0, Writer.KERNEL, None)
        elif self._structured_syslog():
            return
        elif tag is not None and tag[4] is not None:
            self._tag(tag)
        elif looks_like_kernel(rest):
            # Syslog has a host and a tag here, so it is the tag that `logger -t NVRM` chose. ISO times are anybody's.
            self._keep(0, Writer.PROCESS if stamp.clock is Clock.YEARLESS else None, None)
        elif tag is not None:
            self._tag(tag)
        elif (labels := _LABELS.match(rest)) is not None:
            self._keep(labels.end(), None, None)
        elif (host := _HOST_PRINTK.match(rest)) is not None:
            self._keep(host.end(), None, None)

    def _structured_syslog(self) -> bool:
        """RFC 5424: HOST APP PROCID MSGID STRUCTURED-DATA MSG, where the time came from."""
        if (found := _RFC5424_REST.match(self.rest)) is None:
            return False
        self._keep(found.end(), Writer.KERNEL if found[2] in _KERNEL_TAGS else Writer.PROCESS, None)
        self.escaped = _OCTAL
        return True

    def _tag(self, found: re.Match[str]) -> None:
        kernel = found[3] in _KERNEL_TAGS and found[4] is None and found[2] in (None, "kern")
        cpu = _VMKERNEL_CPU.match(self.rest, found.end())
        end = found.end() if cpu is None else cpu.end()
        self._keep(end, Writer.KERNEL if kernel else Writer.PROCESS, None)
        self.escaped = _OCTAL

    def _keep(self, end: int, writer: Writer | None, stamp: Stamp | None) -> None:
        self.rest = self.rest[end:]
        if writer is not None and self.writer is not Writer.PROCESS:
            self.writer = writer
        # A calendar time tells people more than the time since boot, which it often stands around.
        if self.stamp is None:
            self.stamp = stamp


def _by_facility(priority: int) -> Writer:
    """A process cannot set facility 0; any other may be forged."""
    return Writer.KERNEL if priority >> 3 == 0 else Writer.PROCESS


def _calendar_seconds(printed: str) -> float | None:
    """`May  5 05:05:05` and its relatives, with a year before or after the time of day or without one."""
    date, time = re.search(_DATE, printed), re.search(r"(\d\d):(\d\d)(?::(\d\d))?", printed)
    if date is None or time is None:
        return None
    numbers = {short: at for at, short in enumerate(_MONTHS, 1)}
    month = numbers.get(date[1][:3].lower()) or (int(date[1][:-1]) if date[1][0].isdigit() else None)
    if month is None:
        return None
    year = re.search(r"\b[12]\d{3}\b", printed)
    day, hour, minute, second = (int(part or 0) for part in (date[2], *time.groups()))
    return float(timegm((int(year[0]) if year else 1972, month, day, hour, minute, second)))
