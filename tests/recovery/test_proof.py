"""The campaign's proof finds what it is for: each kind of violation, seeded by hand."""

from __future__ import annotations

import pytest

from tests.recovery.proof import Line, prove, read_log, what_changed


def start(instance: str, step: int, value: str, pid: int = 1) -> Line:
    return Line("start", pid, 0.0, instance, step, value)


def end(instance: str, step: int, value: str, pid: int = 1) -> Line:
    return Line("end", pid, 0.0, instance, step, value)


def killed(pid: int = 1) -> Line:
    return Line("killed", pid, 0.0)


GOOD = [
    start("i", 0, "a"),
    end("i", 0, "a"),
    start("i", 1, "b"),
    killed(),
    start("i", 1, "c", 2),
    end("i", 1, "c", 2),
]
RECORDED = {"i": ["a", "c"]}


def test_a_repeat_of_what_was_not_recorded_is_fine() -> None:
    proof = prove(GOOD, RECORDED, 1)
    assert proof == ([], 3, 1, 1)


def test_a_body_that_ended_unrecorded_may_run_again() -> None:
    lines = [start("i", 0, "a"), end("i", 0, "a"), killed(), start("i", 0, "b", 2)]
    assert prove([*lines, end("i", 0, "b", 2)], {"i": ["b"]}, 1).violations == []


@pytest.mark.parametrize(
    ("lines", "recorded", "told"),
    [
        ([*GOOD, start("i", 1, "d", 2)], RECORDED, "ran again"),
        (GOOD, {"i": ["x", "c"]}, "value of no attempt"),
        ([GOOD[2], *GOOD[:2], *GOOD[3:]], RECORDED, "began before"),
        ([*GOOD, start("j", 0, "d", 2), start("k", 0, "e", 2)], RECORDED, "2 instances run"),
        ([*GOOD, start("j", 0, "d", 1)], RECORDED, "goes on after its end"),
    ],
)
def test_violations_are_found(lines: list[Line], recorded: dict[str, list[str]], told: str) -> None:
    assert told in "; ".join(prove(lines, recorded, 1).violations)


def test_a_changed_result_is_found() -> None:
    assert what_changed({"i": [(0, "a"), (0, "a"), (1, "b")]}) == []
    assert "2 results" in what_changed({"i": [(0, "a"), (0, "b")]})[0]


def test_a_torn_last_line_is_left_out() -> None:
    raw = b'{"what":"killed","pid":4,"at":1.5}\n{"what":"sta'
    assert read_log(raw) == [Line("killed", 4, 1.5)]
