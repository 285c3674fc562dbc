"""Nothing begins and nobody is told before what it rests on is written; found by simulation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engines.rig import CLASSES, on_virtual_time, rigged
from toque.engines.workflow import workflow
from toque.runtime import limits
from toque.runtime.errors import SystemFault
from toque.runtime.host import tables_of
from toque.runtime.store_sqlite import SqliteStore

pytestmark = pytest.mark.loop(factory=on_virtual_time)


async def test_a_body_waits_for_its_own_commit_beside_a_pending_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alarm's report waits for a commit when the grant comes: the bodies wait for the next."""
    began = []

    @workflow(name="one")
    async def one(event: Any, step: Any) -> None:
        async def body() -> None:
            began.append(rig.store.durable_seq)

        await step.wait_for_event("go", "go")
        await step.do("a", body)

    async with rigged(tmp_path) as rig:
        reports: list[Any] = []
        await rig.create(one)
        await rig.status("waiting")
        await asyncio.sleep(limits.ALARM_SETTLE_MS / 1000 + 0.1)
        monkeypatch.setattr(rig.reporter, "add", lambda souschef, told: reports.append(told))
        await rig.call("send_event", "go", b"null", "r2")
        assert reports[-1].state == "queued"
        await asyncio.sleep(limits.ANNOUNCE_ALARM_MS / 1000 - 0.1)
        rig.hold_commits()
        await asyncio.sleep(0.2)  # the alarm has set itself anew; that commit stands still
        assert rig.held
        rig.grant(reports[-1])
        await asyncio.sleep(0.01)
        alarm_seq = rig.store.durable_seq + 1
        rig.release_commits()
        for _ in range(5):  # turns of the loop, in no time
            await asyncio.sleep(0)
        assert rig.store.durable_seq == alarm_seq
        assert began == []
        await rig.ended()
        assert began == [alarm_seq + 1]


async def test_who_waits_is_not_told_of_an_end_that_is_not_written(tmp_path: Path) -> None:
    """The shard was taken over while the last body ran: its end is not true."""
    gate = asyncio.get_running_loop().create_future()

    @workflow(name="one")
    async def one(event: Any, step: Any) -> None:
        async def body() -> None:
            await asyncio.shield(gate)

        await step.do("a", body)

    async with rigged(tmp_path) as rig:
        await rig.create(one)
        await rig.status("running")
        waiting = rig.call("wait", 60_000)
        await asyncio.sleep(0.1)
        newer = SqliteStore.open(
            rig.store.path, tables=tables_of(CLASSES), loop=rig.loop, writer="inline", name="d0"
        )
        with pytest.raises(SystemFault):
            rig.store.verify_owner()
        gate.set_result(None)
        with pytest.raises((SystemFault, TimeoutError)):
            await asyncio.wait_for(waiting, 30)
        await newer.close()
