"""Where code runs on Ray: actors for instances that ask for one, for those that hurt their shard,
and for accounts that are not trusted; and that none of it stays.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toque.actors import keeper

pytestmark = [pytest.mark.cluster]
ROOT = Path(__file__).parents[2]
WAIT_MS = 20_000


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tq") as path:
        yield Path(path)


class Story:
    """A process that plays a story of `placed`; ended with the `with` block."""

    def __init__(self, folder: Path, *story: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.placed", str(folder / "data"), *story],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *what: object) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.kill()  # its keeper ends what it has started
        self.process.wait()

    def next(self, what: str) -> dict[str, Any]:
        """The next report of that kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report: dict[str, Any] = json.loads(line)
            if report["what"] == what:
                return report
        raise AssertionError(f"the story ended before {what!r}")

    def end(self) -> None:
        """Wait for its end."""
        assert self.process.wait(WAIT_MS / 1_000) == 0


def ends(pid: int) -> bool:
    """Whether a process ends within the time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(WAIT_MS))
    finally:
        os.close(descriptor)


def test_an_instance_has_a_ray_actor_of_its_own_and_survives_it(folder: Path) -> None:
    with Story(folder, "actor") as story:
        began = story.next("began")
        assert began["pid"] not in began["shards"]
        ended = story.next("ended")
        assert ended["error"] is None
        assert ended["output"] not in (began["pid"], *began["shards"])
        assert story.next("attempts")["success"] == [False, True]
        ending = story.next("ending")
        assert (ending["error"], ending["output"]) == (None, 900_000)
        assert len(ending["ends"]) == 3
        assert ending["bodies"] == ending["ends"][:1], "what had returned does not run again"
        story.end()
        assert ends(ended["output"])


@pytest.mark.timeout(240)
def test_an_instance_that_ends_or_blocks_its_shard_is_put_apart(folder: Path) -> None:
    with Story(folder, "poison", "inner", "loop") as story:
        exits, blocks = story.next("poisoned"), story.next("poisoned")
        for told in (exits, blocks):
            assert told["error"] is None
            assert len(set(told["began"])) == len(told["began"])
            assert told["output"] == told["began"][-1]
            assert told["output"] not in told["other"]
            assert told["other_ms"] < 30_000
        assert exits["other"] != blocks["other"], "the shard's process was another after the block"
        told = [event for event in story.next("events")["events"] if event["shard"] == "d0"]
        blocked = [event for event in told if event["what"] in ("hung", "silent")]
        ended = [event for event in told if event["what"] == "down"]
        assert len(blocked) == 1, f"the second time only its own process was blocked: {told}"
        assert len(ended) == 1, f"the second time only its own process ended: {told}"
        assert "code of instance default/" in blocked[0]["reason"]
        story.end()


def test_a_body_that_needs_resources_is_a_task_that_is_repeated_and_cancelled(
    folder: Path,
) -> None:
    with Story(folder, "resources") as story:
        heavy = story.next("heavy")
        assert heavy["error"] is None
        shard, ran = heavy["output"]
        assert shard in heavy["shards"]
        assert ran == heavy["pids"][1] != heavy["pids"][0]
        assert heavy["attempts"] == [[None], ["StepInterrupted", None]]
        assert story.next("terminated")["has_ended"]
        streams = story.next("streams")
        assert streams["errors"] == [None, None]
        (apart, again), (task, shard) = streams["apart"], streams["tasks"]
        assert [one[0] for one in (apart, again, task, shard)] == [100_000] * 4
        assert {apart[1], task[1]}.isdisjoint(streams["shards"])
        assert shard[1] in streams["shards"]
        assert (streams["lines"], streams["clear"]) == (100_000, 0)
        traced = story.next("traced")
        assert traced["error"] is None
        *seen, exported = traced["output"]
        names = ("step here-1", "step task-1", "step async-1")
        assert [[name, *ids] for name, ids in zip(names, seen, strict=True)] == [
            span for span in exported if span[0] in names
        ]
        name, message = story.next("clinging")["error"]
        assert name == "BodyNotSent"
        assert "step 'cling-1'" in message
        assert story.next("whole")["error"] is None
        pending = story.next("pending")
        assert (pending["status"], pending["other"]) == ("running", "complete")
        needs = "num_cpus=1, num_gpus=1; no node of the cluster has that much: it can't be had here"
        assert pending["why"] == [["task", "heavy-1", needs]]
        story.end()


def test_no_worker_outlives_the_cluster(folder: Path) -> None:
    with Story(folder, "forever") as story:
        other = story.next("other")
        assert len(set(other["output"])) == 1
        assert other["output"][0] not in other["shards"], "another account's code is apart"
        pid = story.next("began")["pid"]
        tree = {process.pid for process in keeper.offspring([story.process.pid])}
        assert {pid, other["output"][0]} <= tree
        story.process.kill()
        story.process.wait()
        assert [one for one in tree if not ends(one)] == []
