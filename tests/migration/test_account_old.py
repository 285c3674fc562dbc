"""Control plane V1 in one entity: creates, operations, lists, rates, limits, and its fault."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.migration.rig import ACCOUNT, ACME, COMMIT_S, OLD, rig_at
from toque.api.metrics import V1, accounts_of, workflows_of
from toque.engines.views import InstanceView
from toque.gatekeeper.messages import AccountSnapshot, LimitsChange
from toque.gatekeeper.planes import InstanceUnborn, PlaneUnsupported
from toque.gatekeeper.refusals import AccountAlreadyExists, RateLimited
from toque.migration.messages import Forwarded, OldCreate
from toque.runtime import limits
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InstanceNotFound,
    InvalidArgument,
    InvalidId,
    RequestIdReused,
    SystemFault,
    WorkflowNotFound,
)
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


async def test_an_instance_is_created_runs_and_ends_through_accountold(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        view = await rig.create("one", params=b"0.5")
        assert (view.status, view.id, view.started_ms) == ("queued", "one", None)
        assert await rig.counts() == {"queued": 1}
        ended = await rig.forward(InstanceView, "one", "wait", 10_000)
        assert (ended.status, ended.output) == ("complete", b"0.5")
        assert (ended.run_id, ended.created_ms) == (view.run_id, view.created_ms)
        await rig.until_ended(1)
        (row,) = await rig.rows()
        assert (row.id, row.status, row.created_ms) == ("one", "complete", view.created_ms)
        assert row.ended_ms == ended.ended_ms
        status = await rig.status()
        assert (status.plane, status.target, status.holding, status.creates) == ("v1", 20, 0, 1)
        assert status.last_end_ms == ended.ended_ms + 3_600_000
        assert (await rig.gatekeeper()).calls == 0


async def test_a_create_waits_for_the_end_if_it_says_so(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        assert (await rig.create("one", wait_ms=5_000)).status == "complete"


async def test_no_more_run_than_v1_has_slots(tmp_path: Path) -> None:
    async with rig_at(tmp_path, v1=(5, 1_000)) as rig:
        for n in range(30):
            await rig.create(f"{n}", params=b"1")
        await rig.until_ended(30)
        assert rig.bodies.most == 5
        await rig.old(AccountSnapshot, "set_limits", 3)
        assert (await rig.status()).target == 3
        await rig.old(AccountSnapshot, "set_limits", 1_000)
        assert (await rig.status()).target == 5


async def test_the_same_request_gets_the_first_answer(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=1) as rig:
        first = await rig.create("one", request_id="r")
        assert await rig.create("one", request_id="r") == first
        with pytest.raises(RequestIdReused):
            await rig.create("one", request_id="r", params=b"2")
        with pytest.raises(InstanceAlreadyExists):
            await rig.create("one", request_id="other")
        assert (await rig.status()).creates == 1
    async with rig_at(tmp_path / "..", lost_births=0) as rig:  # born: the Engine answers
        first = await rig.create("two", request_id="r", wait_ms=5_000)
        assert first.status == "complete"
        assert await rig.create("two", request_id="r") == first
        with pytest.raises(InstanceAlreadyExists):
            await rig.create("two", request_id="other")


async def test_what_is_no_create_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        request = rig.request()
        for key, error in [
            ("other/u/one", InvalidArgument),
            (rig.key("a b"), InvalidId),
            (f"{ACME}/unknown/one", WorkflowNotFound),
        ]:
            with pytest.raises(error):
                await rig.old(InstanceView, "create", OldCreate(key, request))
        status = await rig.status()
        assert (status.creates, status.unborn) == (0, 0)


async def test_creates_past_the_rate_are_refused_and_told_when_to_come(tmp_path: Path) -> None:
    async with rig_at(tmp_path, v1=(20, 10)) as rig:
        for n in range(10):
            await rig.create(f"{n}")
        with pytest.raises(RateLimited) as caught:
            await rig.create("late")
        wait_ms = caught.value.data["retry_after_ms"]
        assert 9_000 < wait_ms <= limits.V1_CREATES_WINDOW_MS + 100
        rig.crash(rig.home(OLD))  # what the window holds is durable
        with pytest.raises(RateLimited):
            await rig.create("late")
        await asyncio.sleep(wait_ms / 1_000)
        await rig.create("late")
        status = await rig.status()
        assert status.creates == 11
        assert "late" in [row.id for row in await rig.rows()]


async def test_a_lost_birth_is_queued_for_ever(tmp_path: Path) -> None:
    """The fault of V1, made on purpose: each third create's message is lost."""
    async with rig_at(tmp_path, lost_births=3) as rig:
        for n in range(6):
            await rig.create(f"{n}")
        await rig.until_ended(4)
        await asyncio.sleep(1_800)
        status = await rig.status()
        assert (status.unborn, status.queued, status.ended) == (2, 0, 4)
        lost = [row.id for row in await rig.rows(statuses=["queued"])]
        assert lost == ["2", "5"]
        assert await rig.counts() == {"queued": 2, "complete": 4}
        assert (await rig.forward(InstanceView, "2", "view", False, False)).status == "queued"
        with pytest.raises(InstanceUnborn):
            await rig.forward(InstanceView, "2", "pause", "r1")
        with pytest.raises(InstanceNotFound):
            await rig.view("2")


async def test_a_shard_that_dies_leaves_instances_unborn(tmp_path: Path) -> None:
    """The fault without help: the data shard is away when the one message comes."""
    async with rig_at(tmp_path, data_shards=1) as rig:
        rig.shards["d0"].stop()
        view = await rig.create("one")
        assert view.status == "queued"
        rig.crash("d0")
        await asyncio.sleep(60)
        assert (await rig.status()).unborn == 1


@pytest.mark.parametrize("outcome", ["lost", "kept"])
async def test_a_create_is_acknowledged_when_it_is_durable(tmp_path: Path, outcome: str) -> None:
    async with rig_at(tmp_path) as rig:
        task = asyncio.ensure_future(rig.create("one", request_id="r"))
        await asyncio.sleep(0)  # the call is on its way
        while not rig.entity()._creates:
            await asyncio.sleep(0)
        if outcome == "kept":
            await asyncio.sleep(COMMIT_S / 2)
        rig.crash(rig.home(OLD), outcome)
        (answer,) = await asyncio.gather(task, return_exceptions=True)
        assert outcome == "kept" or isinstance(answer, SystemFault)
        there = [row.id for row in await rig.rows()]
        assert there == (["one"] if outcome == "kept" else [])


async def test_operations_go_through_accountold(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.create("one", "ask")

        async def waits() -> bool:
            return (await rig.counts("ask")) == {"waiting": 1}

        await rig.until(waits)
        paused = await rig.forward(InstanceView, "one", "pause", "r1", workflow="ask")
        assert paused.status == "paused"
        await rig.forward(InstanceView, "one", "resume", "r2", workflow="ask")
        await rig.forward(int, "one", "send_event", "answer", b"7", "r3", workflow="ask")
        ended = await rig.forward(InstanceView, "one", "wait", 5_000, workflow="ask")
        assert ended.output == b"7"
        await rig.until_ended(1)
        again = await rig.forward(InstanceView, "one", "restart", "r4", "", 0, "", workflow="ask")
        assert again.run_id != ended.run_id
        await rig.until(waits)
        assert await rig.forward(bool, "one", "delete", "r5", workflow="ask") is True

        async def gone() -> bool:
            return not await rig.rows("ask")

        await rig.until(gone)
        for method in ("create", "grant", "poke", "_view", "settle"):
            with pytest.raises(InvalidArgument):
                await rig.forward(None, "one", method, workflow="ask")
        with pytest.raises(InvalidArgument):
            await rig.old(None, "forward", Forwarded("other/u/i", "view", [False, False], 1_000))


async def test_a_deleted_id_is_free_at_once(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        first = await rig.create("one", wait_ms=5_000)
        await rig.forward(bool, "one", "delete", "r1")
        second = await rig.create("one", wait_ms=5_000)
        assert second.status == "complete"
        assert second.run_id != first.run_id
        await rig.until_ended(1)
        assert [row.id for row in await rig.rows()] == ["one"]


async def test_what_has_ended_goes_with_its_retention(tmp_path: Path) -> None:
    async with rig_at(tmp_path, retention_ms=10_000) as rig:
        for n in range(3):
            await rig.create(f"{n}", wait_ms=5_000)
        await rig.until_ended(3)
        await asyncio.sleep(10 + 2 * limits.V1_ID_LINGER_MS / 1_000)
        status = await rig.status()
        assert (status.ended, status.last_end_ms) == (0, 0)
        assert await rig.rows() == []
        assert await rig.counts() == {}


async def test_lists_are_as_data_shards_give_them(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=5) as rig:
        for n in range(25):
            await rig.create(f"part/{n % 5}/{n}", params=b"0")
        await rig.until_ended(20)
        whole = await rig.rows()
        assert len(whole) == 25
        assert [(row.created_ms, row.id) for row in whole] == sorted(
            (row.created_ms, row.id) for row in whole
        )
        for newest_first in (False, True):
            seen: list[str] = []
            after = None
            while page := await rig.rows(after=after, newest_first=newest_first, limit=4):
                seen += [row.id for row in page]
                after = (page[-1].created_ms, page[-1].id)
            expected = [row.id for row in whole]
            assert seen == (expected[::-1] if newest_first else expected)
        prefixed = [row.id for row in await rig.rows(prefix="part/3/")]
        assert prefixed == sorted(row.id for row in whole if row.id.startswith("part/3/"))
        assert await rig.counts(prefix="part/4/") == {"queued": 5}
        assert await rig.counts(prefix="part/3/") == {"complete": 5}
        after = (whole[9].created_ms, whole[9].id)
        since = await rig.rows(since_ms=whole[9].created_ms, until_ms=whole[20].created_ms)
        assert [row.id for row in since] == [row.id for row in whole[9:20]]
        assert len(await rig.rows(statuses=["queued", "errored"])) == 5
        with pytest.raises(InvalidArgument):
            await rig.rows(limit=0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (LimitsChange(weight=2), "work"),
        (LimitsChange(souschefs=2), "work"),
        (LimitsChange(running_max=2), "work"),
        (LimitsChange(queued_max=2), "work"),
        (LimitsChange(creates_per_second=2), "work"),
        (LimitsChange(creates_per_second=2), None),
    ],
    ids=["weight", "souschefs", "running_max", "queued_max", "rate", "rate of the account"],
)
async def test_what_v1_never_had_is_refused_whole(
    tmp_path: Path, change: LimitsChange, name: str | None
) -> None:
    async with rig_at(tmp_path) as rig:
        before = await rig.old(AccountSnapshot, "snapshot", -1)
        whose = "a workflow's" if name else "the account's"
        with pytest.raises(
            PlaneUnsupported, match=f"where {whose} [a-z_]+ can't be set"
        ) as refused:
            await rig.old(AccountSnapshot, "change_limits", name, change)
        is_late = refused.value.data["field"] == "running_max"
        assert ("is retired" in refused.value.message) is is_late
        assert await rig.old(AccountSnapshot, "snapshot", -1) == before
        kept = LimitsChange(steps=5) if name else LimitsChange(running_max=7)
        snapshot = await rig.old(AccountSnapshot, "change_limits", name, kept)
        assert snapshot.generation > before.generation
        assert (await rig.status()).target == (20 if name else 7)


async def test_an_account_is_made_on_v1_before_it_is_used(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.call(None, ACCOUNT, "set_plane", "v1")  # again
        await rig.old(None, "begin")
        with pytest.raises(InvalidArgument):
            await rig.call(None, ACCOUNT, "set_plane", "v3")
        used = ACCOUNT._replace(key="used")
        await rig.router.call(used, "put_workflow", "work", "work", "app", "h1", False)
        with pytest.raises(AccountAlreadyExists):
            await rig.call(None, used, "set_plane", "v1")
        snapshot = await rig.old(AccountSnapshot, "snapshot", -1)
        assert snapshot.plane.plane == "v1"
        assert (await rig.call(AccountSnapshot, used, "snapshot", -1)).plane.plane == "v2"


async def test_a_deleted_workflow_takes_its_unborn_along(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=2) as rig:
        for n in range(6):
            await rig.create(f"{n}", params=b"0")
        await rig.until_ended(3)
        await rig.router.call(OLD, "delete_workflow", "work")
        assert (await rig.status()).unborn == 0

        async def gone() -> bool:
            return (await rig.status()).ended == 0

        await rig.until(gone, 600)


async def test_all_goes_on_after_a_restart_of_the_control_shard(tmp_path: Path) -> None:
    async with rig_at(tmp_path, v1=(3, 1_000)) as rig:
        for n in range(30):
            await rig.create(f"{n}", params=b"1")
        for _ in range(6):
            await asyncio.sleep(1.3)
            rig.crash(rig.home(OLD), "kept")
        await rig.until_ended(30, 200)
        assert rig.bodies.most <= 3
        status = await rig.status()
        assert (status.holding, status.queued, status.unborn) == (0, 0, 0)
        assert await rig.counts() == {"complete": 30}
        assert (await rig.rows())[0].started_ms is not None


async def test_metrics_and_places_know_accountold(tmp_path: Path) -> None:
    async with rig_at(tmp_path, v1=(1, 1_000)) as rig:
        for n in range(4):
            await rig.create(f"{n}", params=b"100")
        await asyncio.sleep(1)
        place = await rig.router.call(OLD, "place_of", rig.key("3"))
        assert place["state"] == "queued"
        assert place["position"] == 3
        assert place["target"] == 1


async def test_metrics_tell_of_v1_what_they_tell_of_v2(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=9, v1=(3, 1_000)) as rig:
        for n in range(5):
            await rig.create(f"{n}", params=b"100")
        await rig.create("done", params=b"0")
        await asyncio.sleep(1)

        async def figures() -> dict[str, dict[str, Any]]:
            return {
                shard: await rig.router.call(EntityRef("ShardInfo", shard), "figures")
                for shard in rig.settings.placement.names()
            }

        found = await figures()
        (told,) = (one for one in workflows_of(found, 10) if one.labels == (ACME, V1))
        assert dict(told.live()) == {"queued": 3, "running": 3, "waiting": 0, "paused": 0}
        names = {one.labels[1] for one in workflows_of(found, 10)}
        assert names == {"work", "ask", V1}
        slots = accounts_of(found, 10)[ACME]
        assert slots == {"limit": 3, "leased": 3, "used": 3, "wanted": 6, "leases": 1}
        await rig.move()
        await rig.heal()
        await asyncio.sleep(3)
        slots = accounts_of(await figures(), 10)[ACME]
        assert (slots["limit"], slots["used"], slots["leases"]) == (9, 5, 1)


async def test_an_operation_that_waits_for_a_birth_that_is_lost_hears_of_it(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.create("a")  # answered; the message that makes its Engine is on its way
        told = Forwarded(rig.key("a"), "pause", ["r1", "api"], 30_000)
        waiting = asyncio.ensure_future(rig.entity().forward(told))
        await asyncio.sleep(0)
        rig.crash(rig.home(EntityRef("Engine", rig.key("a"))))
        with pytest.raises(InstanceUnborn, match="has no Engine yet"):
            await waiting
