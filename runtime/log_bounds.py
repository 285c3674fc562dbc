"""Bounds what the log takes of what others can cause: no caller writes it full.

Lines from one place in the code, with one text before its values are put in, are one kind. Of a
kind LOG_LINES_MAX pass in LOG_WINDOW_MS; the last of them says that more are left out, and the
first one after the window says how many were. What workflows and their prints log is their
authors' own, and passes. Time is that of the records, so nothing here reads a clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from . import limits
from .guarded import called

_PRINTS = ("toque.stdout", "toque.stderr")
_WORKFLOW = "toque.workflow"

Kind = tuple[str, int, str]


class LogBounds(logging.Filter):
    """A filter of handlers and loggers; see the module's description.

    Args:
        names: loggers whose lines are bounded, with those below them; of others all pass.
    """

    def __init__(self, names: Iterable[str] = ("toque", "asyncio")) -> None:
        super().__init__()
        self._names = frozenset(names)
        self._kinds: dict[Kind, tuple[float, int]] = {}
        """When the window of a kind began, and how many lines have come in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line passes; what it says of others is added to it."""
        if self._is_others(record):
            return True
        text = record.msg if type(record.msg) is str else ""
        kind = record.pathname, record.lineno, text
        began, count = self._kinds.get(kind, (record.created, 0))
        window_s = limits.LOG_WINDOW_MS / 1_000
        if not 0 <= record.created - began < window_s:
            left_out = count - limits.LOG_LINES_MAX
            if left_out > 0:
                _add(record, f" ({left_out} more like it were left out before)")
            began, count = record.created, 0
        elif count + 1 == limits.LOG_LINES_MAX:
            _add(record, f" (more like it are left out for {window_s:g} s)")
        if len(self._kinds) >= limits.LOG_KINDS_MAX and kind not in self._kinds:
            self._kinds.clear()
        self._kinds[kind] = began, count + 1
        return count < limits.LOG_LINES_MAX

    def _is_others(self, record: logging.LogRecord) -> bool:
        name = record.name
        if name.partition(".")[0] not in self._names and name not in self._names:
            return True
        return name in _PRINTS or (name == _WORKFLOW and hasattr(record, "workflow"))


def _add(record: logging.LogRecord, more: str) -> None:
    failed, text = called(record.getMessage)
    if failed is None and text is not None:
        record.msg, record.args = f"{text}{more}", None
