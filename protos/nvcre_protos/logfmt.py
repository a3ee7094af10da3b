"""The log of every process of ours: on stderr, one event a line, `key=value`, times in UTC (docs/architecture.md)."""

import logging
import sys
import time

LEVELS = ("debug", "info", "warning", "error")


class LogfmtFormatter(logging.Formatter):
    """Time, level and logger, then the event with its own key=value pairs; what has several lines is escaped."""

    converter = time.gmtime  # type: ignore[assignment]

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z"
        text = record.getMessage().replace("\n", "\\n")
        if record.exc_info:
            trace = self.formatException(record.exc_info).replace("\n", "\\n")
            text = f'{text} traceback="{trace}"'
        return f"time={stamp} level={record.levelname.lower()} logger={record.name} {text}"


def log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogfmtFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
