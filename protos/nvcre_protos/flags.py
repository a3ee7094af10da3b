"""Flags that also come from the environment, and their values (docs/architecture.md, "Processes").

A value that cannot be used ends the process with code 2 and a sentence that names the flag.
"""

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass

from nvcre_protos.addresses import parse_address
from nvcre_protos.logfmt import LEVELS


@dataclass(frozen=True, slots=True)
class Flags:
    parser: ArgumentParser
    environment: Mapping[str, str]

    def add(
        self,
        name: str,
        text: str,
        default: str | None = None,
        metavar: str = "VALUE",
        *also: str,
        required: bool = False,
    ) -> None:
        """`--name`; without it NVCRE_NAME, or one of the variables `also`, unless empty; then the default."""
        value = self._given(name, *also) or default
        shown = f" (default {default})" if default else ""
        required = required and value is None
        self.parser.add_argument(f"--{name}", help=text + shown, default=value, metavar=metavar, required=required)

    def add_repeatable(self, name: str, text: str, metavar: str) -> None:
        """`--name` any number of times: a list, those of NVCRE_NAME first, which are separated by commas."""
        values = [value for value in (self._given(name) or "").split(",") if value]
        text = f"{text}; may be repeated, in the environment separated by commas"
        self.parser.add_argument(f"--{name}", help=text, default=values, metavar=metavar, action="append")

    def add_switch(self, name: str, text: str) -> None:
        """`--name`, or NVCRE_NAME as 1, true or yes."""
        on = (self._given(name) or "").lower() in ("1", "true", "yes")
        self.parser.add_argument(f"--{name}", help=text, default=on, action="store_true")

    def _given(self, name: str, *also: str) -> str | None:
        variables = ("NVCRE_" + name.replace("-", "_").upper(), *also)
        return next((self.environment[variable] for variable in variables if self.environment.get(variable)), None)

    def address(self, flag: str, text: str) -> tuple[str, int]:
        try:
            return parse_address(text)
        except ValueError as error:
            self.parser.error(f"{flag} {error}")

    def integer(self, flag: str, text: str, least: int, most: int) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            self.parser.error(f"{flag} {text!r} must be a whole number from {least} to {most}")
        return int(text)

    def seconds(self, flag: str, text: str, least: float, most: float) -> float:
        try:
            return read_seconds(text, least, most)
        except ValueError as error:
            self.parser.error(f"{flag} {error}")

    def log_level(self, text: str) -> str:
        try:
            return read_log_level(text)
        except ValueError as error:
            self.parser.error(f"--log-level {error}")


def read_seconds(text: str, least: float, most: float) -> float:
    """Raises ValueError that says what would be right."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise ValueError(f"{text!r} must be a number of seconds from {least:g} to {most:g}")
    return value


def read_log_level(text: str) -> str:
    """Raises ValueError that says what would be right."""
    if text not in LEVELS:
        raise ValueError(f"{text!r} must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}")
    return text
