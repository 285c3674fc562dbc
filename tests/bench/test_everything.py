"""`python -m bench all`: a part that takes too long is ended, with all that it has started."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import everything
from bench.everything import Part


def stand_in(path: Path, body: str) -> SimpleNamespace:
    """In place of `sys`: a script that is run in place of Python."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return SimpleNamespace(executable=str(path))


def ends(pid: int) -> bool:
    """Whether a process that was killed ends soon; a zombie has, whoever is to reap it."""
    stat, until = Path(f"/proc/{pid}/stat"), time.monotonic() + 10
    while time.monotonic() < until:
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False


def test_a_part_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"sleep 100 & echo $! > {tmp_path}/pid; wait"
    monkeypatch.setattr(everything, "sys", stand_in(tmp_path / "python", body))
    assert everything.run(Part(("steps",), 1, 2), 60) == "took too long"
    assert ends(int((tmp_path / "pid").read_text()))


def test_what_a_part_starts_while_it_is_asked_to_end_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"trap 'sleep 100 & echo $! > {tmp_path}/pid' INT; while :; do sleep 0.1; done"
    monkeypatch.setattr(everything, "sys", stand_in(tmp_path / "python", body))
    monkeypatch.setattr(everything, "STOP_S", 2)
    assert everything.run(Part(("steps",), 1, 1), 60) == "took too long"
    assert ends(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(("code", "told"), [(0, "done"), (3, "failed (3)")])
def test_a_part_tells_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, told: str
) -> None:
    monkeypatch.setattr(everything, "sys", stand_in(tmp_path / "python", f"exit {code}"))
    assert everything.run(Part(("steps",), 1, 30), 60) == told
