"""What a server's log looks like: lines for people, or one JSON object a line for programs.

The JSON has `time` (UTC), `level`, `logger`, `message` and, with an error, `error`: its traceback.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from ..runtime.log_bounds import LogBounds

FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def log_to_stderr(kind: str = "text") -> None:
    """Have this process log to stderr, in one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else logging.Formatter(_TEXT))
    handler.addFilter(LogBounds())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
