"""What user code prints reaches the shard's log, in whole lines and bounded."""

from __future__ import annotations

import logging

import pytest

from toque.actors.prints import Printed
from toque.runtime import limits


@pytest.fixture
def stream(caplog: pytest.LogCaptureFixture) -> Printed:
    caplog.set_level(logging.INFO)
    return Printed(logging.getLogger("user"), logging.INFO)


def test_lines_are_logged_whole(stream: Printed, caplog: pytest.LogCaptureFixture) -> None:
    print("one", 1, file=stream)
    print("half a ", end="", file=stream)
    print("line\nand more", file=stream)
    print("no end", end="", file=stream)
    assert caplog.messages == ["one 1", "half a line", "and more"]
    stream.flush()
    assert caplog.messages[-1] == "no end"


def test_endless_lines_are_cut(stream: Printed, caplog: pytest.LogCaptureFixture) -> None:
    most = limits.ERROR_MESSAGE_CHARS_MAX
    stream.write("a" * (most + 1))
    stream.write("b" * (most + 1) + "\n")
    assert [len(message) for message in caplog.messages] == [most, most]


def test_signs_of_formatting_are_left_alone(
    stream: Printed, caplog: pytest.LogCaptureFixture
) -> None:
    print("100 %s %d", file=stream)
    assert caplog.messages == ["100 %s %d"]


def test_a_handler_that_fails_and_prints_does_no_harm() -> None:
    logger = logging.getLogger("user.failing")
    logger.propagate = False
    stream = Printed(logger, logging.WARNING)

    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print("no space left", file=stream)

    logger.addHandler(Failing())
    print("hello", file=stream)
