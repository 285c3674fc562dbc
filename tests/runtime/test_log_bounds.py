"""The log is not written full by what others cause; what is left out is counted and told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from toque.runtime.limits import LOG_KINDS_MAX, LOG_LINES_MAX, LOG_WINDOW_MS
from toque.runtime.log_bounds import LogBounds

WINDOW_S = LOG_WINDOW_MS / 1_000


class Log:
    """What a handler with bounds lets pass; `at` is the time of the next lines."""

    def __init__(self, *names: str) -> None:
        self.bounds = LogBounds(names) if names else LogBounds()
        self.at = 100.0
        self.lines: list[str] = []

    def __call__(
        self, text: str, *args: Any, name: str = "toque.api", line: int = 1, **more: Any
    ) -> None:
        record = logging.LogRecord(name, logging.WARNING, "file.py", line, text, args, None)
        record.created = self.at
        record.__dict__.update(more)
        if self.bounds.filter(record):
            self.lines.append(record.getMessage())


def test_of_a_kind_a_number_pass_and_the_rest_is_counted() -> None:
    log = Log()
    for n in range(1_000):
        log("no request: %s 100%%", n)
    assert len(log.lines) == LOG_LINES_MAX
    assert log.lines[0] == "no request: 0 100%"
    last = LOG_LINES_MAX - 1
    assert log.lines[-1] == f"no request: {last} 100% (more like it are left out for 10 s)"
    log.at += WINDOW_S
    log("no request: %s 100%%", "x")
    assert log.lines[-1] == (
        f"no request: x 100% ({1_000 - LOG_LINES_MAX} more like it were left out before)"
    )
    log("no request: %s 100%%", "y")
    assert log.lines[-1] == "no request: y 100%"


def test_kinds_do_not_share_and_a_clock_that_is_set_back_begins_anew() -> None:
    log = Log()
    for line in (1, 2):
        for text in ("one", "two"):
            for _ in range(LOG_LINES_MAX + 5):
                log(text, line=line)
    assert len(log.lines) == 4 * LOG_LINES_MAX
    log.at -= 1_000
    log("one")
    assert log.lines[-1] == "one (5 more like it were left out before)"


def test_what_authors_and_others_log_passes() -> None:
    log = Log()
    for _ in range(100):
        log("mine", name="toque.workflow", workflow="orders")
        log("printed", name="toque.stdout")
        log("of a library", name="urllib3")
    assert len(log.lines) == 300
    log.lines.clear()
    for _ in range(100):
        log("%s ended with an error", 1, name="toque.workflow")
    assert len(log.lines) == LOG_LINES_MAX


def test_texts_without_number_take_bounded_memory() -> None:
    log = Log()
    for n in range(3 * LOG_KINDS_MAX):
        log(f"text {n}")
    assert len(log.lines) == 3 * LOG_KINDS_MAX
    assert len(log.bounds._kinds) <= LOG_KINDS_MAX


def test_what_can_not_be_shown_is_bounded_too() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    log = Log()
    passed: list[logging.LogRecord] = []
    for _ in range(LOG_LINES_MAX + 1):
        record = logging.LogRecord("toque.api", 30, "f", 1, "%s", (Odd(),), None)
        record.created = 1.0
        passed += [record] if log.bounds.filter(record) else []
    assert len(passed) == LOG_LINES_MAX
    with pytest.raises(RuntimeError):
        passed[-1].getMessage()
