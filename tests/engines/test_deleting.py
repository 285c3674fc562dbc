"""Deletion and retention: what is removed, when an id is free, who still has to hear of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.flows import Event, Step, hanging, napping, one_step
from tests.engines.rig import KEY, Rig, on_virtual_time, rigged
from tests.engines.test_restarting import in_status
from toque.engines.workflow import workflow
from toque.runtime import limits
from toque.runtime.errors import InstanceNotFound

pytestmark = pytest.mark.loop(factory=on_virtual_time)
STATE = ("instances", "steps", "payloads", "events", "status_notes")


def nothing_left(rig: Rig) -> bool:
    """Whether no row of an instance is left but the tombstone."""
    return not any(rig.rows(table) for table in STATE)


@pytest.mark.parametrize(
    "status",
    ["queued", "running", "waiting", "paused", "waitingForPause", "complete", "errored"],
)
async def test_delete_removes_everything_in_any_status(tmp_path: Path, status: str) -> None:
    async with rigged(tmp_path) as rig:
        await in_status(rig, status)
        rig.auto = False
        assert await rig.call("delete", "d1") is True
        assert nothing_left(rig)
        for method, args in (("view", (True, False)), ("terminate", ("t",)), ("delete", ("d2",))):
            with pytest.raises(InstanceNotFound):
                await rig.call(method, *args)
        assert await rig.call("delete", "d1") is True
        await rig.pass_time(1)
        assert rig.reports[-1].state == "ended"
        assert await rig.grant(rig.reports[0]) == [False]
        await rig.pass_time(limits.DELETION_REMEMBERED_MS / 1_000 + 10)
        assert not rig.rows("tombstones")
        assert not rig.rows("requests")
        assert not rig.rows("alarms")


async def test_the_id_is_free_at_once(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        first = await rig.create(hanging())
        await rig.status("running")
        await rig.call("delete", "d1")
        second = await rig.create(napping(1), request_id="r2")
        assert second.run_id != first.run_id
        assert await rig.call("delete", "d1") is True  # said again: it was the first one
        assert (await rig.view()).run_id == second.run_id
        assert (await rig.ended()).output == b'"rested"'
        old = max(r.since_ms for r in rig.reports if r.run_id == first.run_id)
        assert all(r.since_ms > old for r in rig.reports if r.run_id == second.run_id)
        assert not rig.rows("tombstones")


async def test_a_late_create_does_not_bring_it_back(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping())
        await rig.call("delete", "d1")
        with pytest.raises(InstanceNotFound, match="deleted"):
            await rig.create("nap")
        assert nothing_left(rig)


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_tombstone_lasts_until_the_souschef_knows(tmp_path: Path, deaf: bool) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(hanging())
        await rig.status("running")
        rig.deaf = True
        await rig.call("delete", "d1")
        rig.restart()
        await rig.pass_time(2 * limits.DELETION_REMEMBERED_MS / 1_000)
        assert rig.rows("tombstones")
        rig.deaf = False
        await rig.pass_time(30)
        assert not rig.rows("tombstones")
        assert rig.reports[-1].state == "ended"


async def test_a_deletion_that_is_told_again_is_not_counted_again(tmp_path: Path) -> None:
    """Long after it has confirmed, a SousChef need not know any more that it has counted it."""
    async with rigged(tmp_path) as rig:
        await rig.create(hanging())
        await rig.status("running")
        await rig.call("delete", "d1")
        await rig.pass_time(30)
        rig.restart()
        await rig.pass_time(2 * limits.DELETION_REMEMBERED_MS / 1_000)
        assert not rig.rows("tombstones")
        told = [report.status for report in rig.reports if report.state == "ended"]
        assert told[0] == "deleted"
        assert set(told[1:]) == {""}


async def test_an_instance_may_delete_itself(tmp_path: Path) -> None:
    ends: list[str] = []

    @workflow(name="selfless")
    async def run(event: Event, step: Step) -> Any:
        await step.do("delete", lambda: rig.call("delete", "self"))
        ends.append("went on")

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.pass_time(5)
        with pytest.raises(InstanceNotFound):
            await rig.view()
        assert not ends
        assert nothing_left(rig)


async def test_who_waits_is_told(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(hanging())
        await rig.status("running")
        wait = rig.call("wait", 60_000)
        await rig.pass_time(1)
        await rig.call("delete", "")
        with pytest.raises(InstanceNotFound, match="deleted"):
            await wait


async def test_a_large_instance_goes_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toque.engines.rows.WIPE_ROWS_MAX", 5)
    monkeypatch.setattr("toque.engines.rows.SCAN_ROWS_MAX", 5)

    @workflow(name="large")
    async def run(event: Event, step: Step) -> Any:
        for _ in range(23):
            await step.do("s", lambda: None)

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.ended()
        await rig.call("delete", "d1")
        assert rig.rows("steps")
        assert not rig.rows("instances")
        rig.restart()
        await rig.pass_time(20)
        assert nothing_left(rig)
        assert (await rig.create("large", request_id="r2")).status == "queued"


# --- retention ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("fails", "kept_s"), [(False, 100), (True, 300)])
async def test_an_instance_expires_by_how_it_ended(
    tmp_path: Path, fails: bool, kept_s: int
) -> None:
    def body() -> int:
        return 1 // 0 if fails else 1

    async with rigged(tmp_path) as rig:
        once = {"retries": {"limit": 0}}
        await rig.create(one_step(body, once), retention=(100_000, 300_000))
        await rig.ended()
        rig.restart()
        await rig.pass_time(kept_s - 5)
        assert (await rig.view()).status == ("errored" if fails else "complete")
        await rig.pass_time(20)
        assert nothing_left(rig)
        for table in ("tombstones", "requests", "alarms"):
            assert not rig.rows(table)
        assert [r.status for r in rig.reports if r.state == "ended"][-1] == ""


async def test_an_expired_id_can_be_used_though_its_alarm_is_late(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        first = await rig.create(one_step(lambda: 1), retention=(1_000, 1_000))
        await rig.ended()
        rig.crash()
        await rig.pass_time(5)
        rig.open()
        second = await rig.create("one", request_id="r2")
        assert second.run_id != first.run_id


async def test_by_default_it_is_kept_for_a_week(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(one_step(lambda: 1))
        ended = await rig.ended()
        await rig.pass_time(1)
        (alarm,) = rig.rows("alarms")
        assert alarm[1:3] == (KEY, (ended.ended_ms or 0) + limits.RETENTION_DEFAULT_MS)
        assert (await rig.view()).status == "complete"


async def test_a_restart_is_kept_anew(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(hanging(), retention=(60_000, 60_000))
        await rig.status("running")
        await rig.do("terminate")
        await rig.pass_time(30)
        await rig.do("restart", "", "", 1, "do")
        await rig.pass_time(100)
        assert (await rig.view()).status == "running"
