"""Operations on instances whose code runs in a process of its own: the same as in the shard."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.engines.worker_app import Undone
from toque.api.wiring import embedded
from toque.engines.failures import StepUndone


def told(path: Path) -> list[str]:
    """What was written down; never by this process."""
    lines = [line.rsplit(" ", 1) for line in path.read_text().splitlines()]
    assert str(os.getpid()) not in {pid for _, pid in lines}
    return [what for what, _ in lines]


async def until(instance: Any, status: str) -> Any:
    """Its status, once it is that."""
    async with asyncio.timeout(60):
        while (found := await instance.status()).status != status:
            await asyncio.sleep(0)
    return found


async def test_operations_reach_code_in_another_process(tmp_path: Path) -> None:
    async with embedded(tmp_path / "data", [Undone]) as runtime:
        client = runtime.client()
        path = tmp_path / "one"
        one = await client.create_instance("Undone", params=str(path))
        await until(one, "waiting")
        await one.pause()
        await one.send_event("word", "fail")
        assert (await one.status()).status == "paused"
        await one.resume()
        ended = await one.wait(60)
        assert (ended.status, ended.error.message) == ("errored", "no")
        assert ended.rollback.outcome == "complete"
        assert told(path) == ["first", "second", "undo-second-None-no", "undo-first-None-no"]

        with pytest.raises(StepUndone, match="first"):
            await one.restart(from_step={"name": "hear", "type": "waitForEvent"})
        await one.restart(from_step={"name": "first"})
        ended = await one.wait(60)
        assert ended.rollback.outcome == "complete"
        assert told(path).count("first") == 2
        assert told(path).count("second") == 2


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_a_parked_one_is_cancelled_or_rolled_back(tmp_path: Path, how: str) -> None:
    async with embedded(tmp_path / "data", [Undone]) as runtime:
        client = runtime.client()
        path = tmp_path / "one"
        one = await client.create_instance("Undone", params=str(path))
        await until(one, "waiting")
        if how == "cancel":
            await one.cancel()
        else:
            await one.terminate(rollback=True)
        ended = await one.wait(60)
        assert ended.status == "terminated"
        if how == "cancel":
            assert ended.error.name == "Cancelled"
            assert told(path) == ["first", "clean"]
        else:
            assert told(path) == ["first", "undo-first-None-the instance is terminated"]
        await one.delete()
