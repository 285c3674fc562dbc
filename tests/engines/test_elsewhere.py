"""A workflow that uses all there is, with its code in a worker: crashes of the shard at commits,
and deaths of the worker at any time, change nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.loopback import LoopbackHost
from tests.engines.rig import Rig, on_virtual_time, rigged
from tests.engines.test_crashes import Everything, play_once

pytestmark = pytest.mark.loop(factory=on_virtual_time)


@pytest.fixture(autouse=True)
def in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(rig: Rig) -> LoopbackHost:
        return LoopbackHost(rig.loop, rig.clock, rig.definitions.values())

    monkeypatch.setattr(Rig, "make_code", staticmethod(make))


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("commit", range(2, 34, 4))
async def test_a_crash_at_a_commit_changes_nothing(
    tmp_path: Path, commit: int, outcome: Any
) -> None:
    async with rigged(tmp_path) as rig:
        rig.crash_at = (commit, outcome)
        await play_once(rig, Everything())
        assert rig.crashes == (commit <= rig.commits)
        workers = rig.code.workers  # type: ignore[attr-defined]
        assert not workers, "who has ended, or waits, holds no process"


@pytest.mark.parametrize("every_ms", [7, 31, 260, 1_111])
async def test_a_worker_that_dies_again_and_again_changes_nothing(
    tmp_path: Path, every_ms: int
) -> None:
    killed = 0
    async with rigged(tmp_path) as rig:

        def kill() -> None:
            nonlocal killed
            for worker in list(rig.code.workers):  # type: ignore[attr-defined]
                worker.kill()
                killed += 1
            if killed < 8:
                rig.loop.call_later(every_ms / 1_000, kill)

        rig.loop.call_later(every_ms / 1_000, kill)
        await play_once(rig, Everything())
        assert killed
