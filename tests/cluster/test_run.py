"""A local cluster's process tree: nothing of it stays, whatever is killed. One story, to save
starts: a lost raylet, a killed starter, a killed starter and keeper, Ctrl-C.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toque.actors import keeper
from toque.actors.keeper import Process

pytestmark = [pytest.mark.cluster]
ROOT = Path(__file__).parents[2]
WAIT_MS = 20_000


class Starter:
    """A process that runs `tests.cluster.starter`. Nobody but itself may write on its terminal."""

    def __init__(self, data: Path) -> None:
        self.noise = data.with_name("noise")
        with self.noise.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.starter", str(data)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )
        self.info = self.next("ready")

    def next(self, what: str, shard: str | None = None) -> dict[str, Any]:
        """The next report of that kind; those between are skipped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report: dict[str, Any] = json.loads(line)
            if report["what"] == what and shard in (None, report.get("shard")):
                return report
        raise AssertionError(f"the starter ended before it said {what!r}")

    def others(self) -> list[Process]:
        """All processes of its tree but itself."""
        pid = self.process.pid
        return [process for process in keeper.offspring([pid]) if process.pid != pid]

    def noted(self) -> list[Process]:
        """As `others`, as soon as the keeper has noted all of them: it looks twice a second."""
        pause = threading.Event()
        while True:
            found = self.others()
            run = keeper.read_run(str(self.noise.with_name("data") / "run.json"))
            if run is not None and set(found) <= set(keeper.processes_of(run)):
                return found
            pause.wait(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        yield Path(folder, "data")


def still_there(processes: list[Process], wait_ms: int = WAIT_MS) -> list[str]:
    """Those that have not ended within the time."""
    left = []
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if keeper.is_alive(process) and not poll.poll(wait_ms):
            left.append(f"{process.pid}: {keeper.command(process.pid)[:80]}")
        os.close(descriptor)
    return left


def test_nothing_is_left_whatever_is_killed(data: Path) -> None:
    first = Starter(data)
    tree = first.others()
    assert len(tree) >= 5
    os.kill(first.info["raylet"], signal.SIGKILL)
    first.next("lost", "ray")
    first.next("back", "ray")
    rebuilt = first.others()
    kept = [p for p in tree if p.pid == first.info["keeper"]]
    assert still_there([p for p in tree if p not in kept]) == []

    first.kill()
    assert still_there(rebuilt) == []
    assert not (data / "run.json").exists()
    assert not os.path.exists(first.info["run_dir"])

    second = Starter(data)
    tree = second.noted()
    os.kill(second.info["actors"]["d0"], signal.SIGSTOP)
    os.kill(second.info["keeper"], signal.SIGKILL)
    second.kill()
    left = [process for process in tree if keeper.is_alive(process)]

    third = Starter(data)
    assert still_there(left, 0) == []
    tree = third.others()
    third.process.send_signal(signal.SIGINT)
    assert third.next("stopped")["environment_is_as_before"]
    assert third.process.wait(WAIT_MS / 1000) == 0
    third.kill()
    assert still_there(tree) == []
    assert not (data / "run.json").exists()
    assert not os.path.exists(third.info["run_dir"])
    assert third.noise.read_text() == ""
