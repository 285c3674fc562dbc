"""Who takes the id of a deleted instance of V1 is an instance of V2."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.migration.rig import OLD, Rig, rig_at
from toque.engines.ports import StatusReport
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


async def _souschef(rig: Rig, instance_id: str) -> int:
    engine = EntityRef("Engine", rig.key(instance_id, "ask"))
    found: int = (await rig.call(dict[str, Any], engine, "waiting"))["souschef"]
    return found


async def _deleted(rig: Rig, instance_id: str) -> None:
    engine = EntityRef("Engine", rig.key(instance_id, "ask"))
    await rig.router.call(engine, "delete", f"delete {instance_id}")

    async def gone() -> bool:
        status = await rig.status()
        return not status.waiting + status.queued + status.holding + status.ended

    await rig.until(gone)
    await asyncio.sleep(1)  # the answer to its last report has come, too


@pytest.mark.parametrize("crashes", [False, True])
async def test_an_id_of_v1_is_v2s_once_its_end_is_known(tmp_path: Path, crashes: bool) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.create("one", "ask")
        await asyncio.sleep(1)
        await rig.move()
        await rig.heal()
        assert await _souschef(rig, "one") == -1
        await _deleted(rig, "one")
        assert await rig.old(bool, "retire", "m1") is True
        if crashes:
            for shard in list(rig.shards):
                rig.crash(shard)
        await rig.create_v2("one", "ask")
        assert await _souschef(rig, "one") == 0


async def test_late_news_of_the_id_is_dropped_when_it_is_anothers(tmp_path: Path) -> None:
    """V1's entity has forgotten that the run ended, and a copy of a report comes once more."""
    async with rig_at(tmp_path) as rig:
        run_id = (await rig.create("one", "ask")).run_id
        await asyncio.sleep(1)
        await rig.move()
        await rig.heal()
        await _deleted(rig, "one")
        await rig.create_v2("one", "ask")
        rig.crash(rig.home(OLD))
        key = rig.key("one", "ask")
        shard = rig.home(EntityRef("Engine", key))
        late = StatusReport(key, run_id, 3, "running", 1, False, rig.clock.now_ms(), 0, "", shard)
        await rig.router.call(OLD, "report", [late])
        assert (await rig.status()).holding == 1

        async def dropped() -> bool:
            return not (await rig.status()).holding

        await rig.until(dropped)
        assert (await rig.view("one", "ask")).run_id != run_id
