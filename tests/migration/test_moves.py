"""The move of an account: each step, again and late, over crashes, and what stays exact."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.migration.rig import ACCOUNT, ACME, GATEKEEPER, OLD, Rig, rig_at
from toque.engines.views import IndexRow, InstanceView
from toque.gatekeeper.account import Account
from toque.gatekeeper.gatekeeper import Gatekeeper
from toque.gatekeeper.messages import (
    AccountSnapshot,
    CycleRequest,
    LimitsChange,
    RateRequest,
    WorkflowRecord,
)
from toque.gatekeeper.planes import PlaneUnsupported, StaleMigration, WrongControlPlane
from toque.migration.account_old import AccountOld
from toque.migration.messages import Asked, Forwarded, Frozen, OldCreate, RegistryPart
from toque.migration.refusals import AbortRefused
from toque.runtime import limits
from toque.runtime.dispatch import handlers_of
from toque.runtime.errors import InstanceNotFound, InvalidArgument, ToqueError
from toque.runtime.ids import EntityRef
from toque.runtime.payload_codec import Codecs
from toque.runtime.simloop import VirtualTimeLoop
from toque.souschef.rows import HELD, ORDER, PARKED

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)

ANY = {"v1", "moving", "v2"}
NO_CHANGE = LimitsChange()


def _methods(rig: Rig) -> list[tuple[EntityRef, str, set[str], tuple[Any, ...]]]:
    """Every method that has to do with planes: whose, on which planes, and arguments."""
    uuid, key = rig.records["work"].uuid, rig.key("probe")
    cycle = CycleRequest(f"{ACME}/u/0", 1, 1, 0, 0, 0, 0, 0, 0, 0, False)
    rates = RateRequest("front", 1, {}, {})
    told = Forwarded(key, "view", [False, False], 1_000)
    deploy = ("work", "work", "app", "h2", False)
    old: list[tuple[str, set[str], tuple[Any, ...]]] = [
        ("begin", ANY, ()),
        ("report", ANY, ([],)),
        ("statistics", ANY, ()),
        ("place_of", ANY, (key,)),
        ("status", ANY, ()),
        ("create", {"v1"}, (OldCreate(key, rig.request()),)),
        ("forward", {"v1"}, (told,)),
        ("list_page", {"v1"}, (rig.page(),)),
        ("counts", {"v1"}, (uuid, "")),
        ("snapshot", {"v1"}, (-1,)),
        ("put_script", {"v1"}, ("app", "h1", [("work", "work")], False)),
        ("register", {"v1"}, ("work", "work", "app", NO_CHANGE)),
        ("list_scripts", {"v1"}, ()),
        ("put_workflow", {"v1"}, deploy),
        ("get_workflow", {"v1"}, ("work",)),
        ("list_versions", {"v1"}, ("work",)),
        ("change_limits", {"v1"}, (None, NO_CHANGE)),
        ("set_limits", {"v1"}, (50,)),
        ("delete_workflow", {"v1"}, ("none",)),
        ("drop_unborn", {"v1", "v2"}, ("none",)),
        ("abort", ANY, ("m0",)),
        ("freeze", ANY, ("m0",)),
        ("registry_part", {"moving", "v2"}, ("m0", None)),
        ("route", {"moving", "v2"}, ("m0",)),
        ("ask", {"v2"}, (key, False)),
        ("unborn_page", ANY, (rig.page(),)),
        ("unborn_counts", ANY, (uuid, "")),
        ("heal", {"v2"}, ("m0",)),
        ("healed", {"v2"}, ("m0",)),
        ("retire", {"v2"}, ("m0",)),
    ]
    account: list[tuple[str, set[str], tuple[Any, ...]]] = [
        ("set_plane", ANY, ("v1",)),
        ("adopt_part", ANY, ("m0", RegistryPart("accounts", [], "x"))),
        ("adopt", ANY, ("m0",)),
        ("healed", ANY, ("m0",)),
        ("retired", ANY, ("m0",)),
        ("spread", ANY, (uuid, 1)),
        ("snapshot", {"v2"}, (-1,)),
        ("put_script", {"v2"}, ("app", "h1", [("work", "work")], False)),
        ("register", {"v2"}, ("work", "work", "app", NO_CHANGE)),
        ("list_scripts", {"v2"}, ()),
        ("put_workflow", {"v2"}, deploy),
        ("get_workflow", {"v2"}, ("work",)),
        ("list_versions", {"v2"}, ("work",)),
        ("change_limits", {"v2"}, (None, NO_CHANGE)),
        ("set_limits", {"v2"}, (50,)),
        ("set_souschefs", {"v2"}, ("work", 1)),
        ("set_workflow_limits", {"v2"}, ("work", 1, 0)),
        ("delete_workflow", {"v2"}, ("none",)),
        ("abandon", ANY, ("m0",)),
    ]
    gatekeeper: list[tuple[str, set[str], tuple[Any, ...]]] = [
        ("cycle", {"v2"}, (cycle,)),
        ("lease_rates", {"v2"}, (rates,)),
        ("statistics", ANY, ()),
        ("set_plane", ANY, ("v1",)),
        ("abandon", ANY, ("m0",)),
        ("adopt", ANY, ("m0", Frozen("m0", 1, 1, 0, 0, 0, 0, 0, 50))),
        ("set_spread", ANY, (uuid, None)),
        ("set_queue", ANY, (uuid, None)),
        ("set_rate", ANY, (uuid, None)),
        ("set_limit", ANY, (50,)),
        ("set_workflow", ANY, (uuid, 1, 0)),
    ]
    return [
        (ref, method, planes, args)
        for ref, rows in ((OLD, old), (ACCOUNT, account), (GATEKEEPER, gatekeeper))
        for method, planes, args in rows
    ]


@pytest.mark.parametrize("plane", ["v1", "moving", "v2"])
async def test_each_method_is_for_its_planes(tmp_path: Path, plane: str) -> None:
    async with rig_at(tmp_path) as rig:
        if plane == "moving":
            await rig.freeze("m5")
        elif plane == "v2":
            await rig.move("m5")
        on_v2 = plane if plane != "moving" else "v1"  # what V2's entities know meanwhile
        for ref, method, planes, args in _methods(rig):
            found: Any = None
            try:
                await rig.router.call(ref, method, *args)
            except ToqueError as error:
                found = error
            wrong = isinstance(found, WrongControlPlane)
            known = plane if ref == OLD else on_v2
            assert wrong == (known not in planes), (plane, ref, method, found)
            if wrong:
                assert found.data == {
                    "account": ACME, "requires": [p for p in ("v1", "moving", "v2") if p in planes],
                    "is": known,
                }  # fmt: skip
                assert found.retryable
        assert (await rig.status()).plane == plane
        if plane == "v2":
            await rig.heal("m5")


def test_the_list_of_methods_is_whole() -> None:
    class Named(Rig):
        def __init__(self) -> None:
            record = WorkflowRecord("work", "u", "", "", "", "", 0, 0, 1, 0)
            self.records = {"work": record}
            self._requests = 0

    told = {(ref.kind, method) for ref, method, _, _ in _methods(Named())}
    for cls in (AccountOld, Account, Gatekeeper):
        missed = {name for name in handlers_of(cls) if (cls.KIND, name) not in told}
        assert missed <= {"count_into"}, (cls, missed)


# --- what stays the same, and exact ---------------------------------------------------------


def _roster_rows(rig: Rig) -> list[list[Any]]:
    ctx = rig.entity().ctx
    return [ctx.scan(table, (OLD.key,)) for table in (HELD, PARKED, ORDER)]


async def _mixed(rig: Rig) -> None:
    """Instances that run, wait, are paused, queued, ended and unborn."""
    for n in range(4):
        await rig.create(f"done/{n}", params=b"0.001", wait_ms=5_000)
    for n in range(3):
        await rig.create(f"ask/{n}", "ask")

    async def all_wait() -> bool:
        return (await rig.counts("ask")) == {"waiting": 3}

    await rig.until(all_wait)
    await rig.forward(InstanceView, "ask/0", "pause", "p", workflow="ask")
    for n in range(12):
        await rig.create(f"long/{n}", params=b"30")
    await asyncio.sleep(1)


async def test_the_same_rows_serve_both_planes(tmp_path: Path) -> None:
    async with rig_at(tmp_path, v1=(5, 1_000), lost_births=8) as rig:
        await _mixed(rig)
        before, listed = _roster_rows(rig), await rig.rows()
        counts = await rig.counts()
        asked = await rig.rows("ask")
        frozen = await rig.move()
        assert _roster_rows(rig) == before
        assert list(map(len, before)) == [5, 8, 7]
        unborn = (await rig.status()).unborn
        assert frozen == Frozen(
            "m1", frozen.at_ms, frozen.lease_version, 5, 5, 2, 1, unborn, 50, 2, 5
        )
        assert unborn == 2
        for then, now in ((listed, await rig.rows_v2()), (asked, await rig.rows_v2("ask"))):
            assert [_told(row) for row in then] == [_told(row) for row in now]
        rows = await rig.rows_v2()
        assert counts == {status: sum(row.status == status for row in rows) for status in counts}


def _told(row: IndexRow) -> tuple[Any, ...]:
    return row.id, row.status, row.created_ms, row.ended_ms, row.version_id, row.source


async def test_limits_are_exact_over_the_move(tmp_path: Path) -> None:
    """10 slots, full before, in between and after, with creates on both planes."""
    async with rig_at(tmp_path, running_max=10, v1=(10, 1_000), lost_births=7) as rig:
        for n in range(60):
            await rig.create(f"old/{n}", params=b"0.7")
        await asyncio.sleep(1)
        frozen = await rig.freeze()
        assert frozen.holding == rig.bodies.running == 10
        await asyncio.sleep(1)  # slots that are left are used again, and no other
        assert rig.bodies.running == 10
        await rig.adopt(frozen)
        assert (await rig.gatekeeper()).ledger == 10
        await rig.old(None, "route", "m1")
        for n in range(40):
            await rig.create_v2(f"new/{n}", params=b"0.3")
            await asyncio.sleep(0.02)
        await rig.heal()

        async def all_done() -> bool:
            rows = await rig.rows_v2()
            return len(rows) == 100 and all(row.status == "complete" for row in rows)

        await rig.until(all_done, 60)
        assert rig.bodies.most == 10
        assert rig.bodies.begun == 100
        assert (await rig.status()).ended == 60
        await asyncio.sleep(30)
        statistics = await rig.gatekeeper()
        assert (statistics.ledger, statistics.active) == (0, 0)


async def test_more_may_run_on_v2_and_never_more_than_the_account_may(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=30, v1=(5, 1_000)) as rig:
        for n in range(60):
            await rig.create(f"{n}", params=b"2")
        await asyncio.sleep(1)
        assert rig.bodies.running == 5
        await rig.move()
        await rig.heal()
        await rig.until_ended(60, 30)
        assert rig.bodies.most == 30


async def test_a_lowered_limit_is_obeyed_on_either_side(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=20, v1=(20, 1_000)) as rig:
        for n in range(60):
            await rig.create(f"{n}", params=b"5")
        await asyncio.sleep(1)
        await rig.old(AccountSnapshot, "set_limits", 4)
        await asyncio.sleep(3)
        frozen = await rig.freeze()
        assert (frozen.holding, frozen.running_max, frozen.target) == (20, 4, 4)
        await rig.adopt(frozen)
        statistics = await rig.gatekeeper()
        assert (statistics.ledger, statistics.running_max) == (20, 4)
        await asyncio.sleep(1.3)  # all 20 end while the account moves
        assert rig.bodies.running == 4
        assert rig.bodies.begun == 24
        await rig.old(None, "route", "m1")
        await rig.until_ended(60, 100)
        assert rig.bodies.most_of(24) == 4


# --- again, late, over crashes --------------------------------------------------------------

STEPS = ("freeze", "gatekeeper", "part", "account", "route", "heal", "healed")


async def _step(rig: Rig, step: str, migration_id: str, frozen: Frozen) -> Any:
    if step == "freeze":
        return await rig.freeze(migration_id)
    if step == "gatekeeper":
        return await rig.call(None, GATEKEEPER, "adopt", migration_id, frozen)
    if step == "part":
        after = None
        while True:
            part = await rig.old(RegistryPart, "registry_part", migration_id, after)
            await rig.call(None, ACCOUNT, "adopt_part", migration_id, part)
            after = part.after
            if after is None:
                return None
    if step == "account":
        return await rig.call(None, ACCOUNT, "adopt", migration_id)
    if step == "route":
        return await rig.old(None, "route", migration_id)
    if step == "heal":
        while await rig.old(int, "heal", migration_id):
            await asyncio.sleep(0.1)
        return None
    await rig.old(None, "healed", migration_id)
    return await rig.call(None, ACCOUNT, "healed", migration_id)


@pytest.mark.parametrize("victim", ["old", "account", "gatekeeper", "data"])
@pytest.mark.parametrize("outcome", ["kept", "lost"])
async def test_each_step_may_come_again_after_a_crash(
    tmp_path: Path, victim: str, outcome: str
) -> None:
    shards = {"old": OLD, "account": ACCOUNT, "gatekeeper": GATEKEEPER}
    async with rig_at(
        tmp_path, running_max=8, v1=(8, 1_000), lost_births=5, control_shards=3
    ) as rig:
        for n in range(40):
            await rig.create(f"{n}", params=b"0.5")
        await asyncio.sleep(1)
        first = await rig.freeze()
        for step in STEPS:
            before = await _step(rig, step, "m1", first)
            rig.crash("d0" if victim == "data" else rig.home(shards[victim]), outcome)
            await asyncio.sleep(0.3)
            assert await _step(rig, step, "m1", first) == before
        assert first == await rig.freeze()
        await rig.until_ended(40, 200)
        if victim != "data":  # a body of a data shard that died runs once more
            assert rig.bodies.most == 8
            assert rig.bodies.begun == 40
        status = await rig.status()
        assert (status.plane, status.healing, status.unborn) == ("v2", False, 0)
        snapshot = await rig.snapshot()
        assert [record.uuid for record in snapshot.workflows or ()] == [
            rig.records[name].uuid for name in sorted(rig.records)
        ]
        assert snapshot.plane.from_v1


async def test_late_messages_of_an_aborted_migration_change_nothing(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=8, v1=(8, 1_000), lost_births=5) as rig:
        for n in range(20):
            await rig.create(f"{n}", params=b"20")
        await asyncio.sleep(1)
        frozen = await rig.move()
        parts = [await rig.old(RegistryPart, "registry_part", "m1", None)]
        await rig.abort()

        async def late() -> None:
            for ref, method, args in [
                (OLD, "freeze", ("m1",)),
                (OLD, "registry_part", ("m1", None)),
                (OLD, "route", ("m1",)),
                (OLD, "heal", ("m1",)),
                (OLD, "healed", ("m1",)),
                (OLD, "retire", ("m1",)),
                (GATEKEEPER, "adopt", ("m1", frozen)),
                (ACCOUNT, "adopt_part", ("m1", parts[0])),
                (ACCOUNT, "adopt", ("m1",)),
                (ACCOUNT, "healed", ("m1",)),
                (ACCOUNT, "retired", ("m1",)),
            ]:
                with pytest.raises((StaleMigration, WrongControlPlane)):
                    await rig.router.call(ref, method, *args)
            await rig.abort()  # again

        await late()
        status = await rig.status()
        assert (status.plane, status.target, status.unborn) == ("v1", 8, 4)
        assert (await rig.gatekeeper()).ledger == 0
        with pytest.raises(WrongControlPlane):
            await rig.snapshot()
        second = await rig.move("m2")
        assert second.lease_version > frozen.lease_version
        await late()
        status = await rig.status()
        assert (status.plane, status.migration_id, status.healing) == ("v2", "m2", True)
        assert (await rig.gatekeeper()).ledger >= 8
        with pytest.raises(StaleMigration):
            await rig.freeze("m3")
        await rig.heal("m2")
        await late()
        await rig.until_ended(20, 200)
        assert rig.bodies.most == 8


async def test_an_answer_of_an_older_lease_is_not_obeyed(tmp_path: Path) -> None:
    """The Gatekeeper's answer is on its way when the account goes back to V1."""
    async with rig_at(tmp_path, running_max=30, v1=(5, 1_000)) as rig:
        for n in range(40):
            await rig.create(f"{n}", params=b"20")
        await rig.move()
        chef = rig.entity()
        while not chef._calling:
            await asyncio.sleep(0.001)
        await rig.old(None, "abort", "m1")
        await asyncio.sleep(3)
        assert (await rig.status()).target == 5
        assert not chef._calling
        assert rig.bodies.running == 5


# --- abort ----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(len(STEPS) - 1))
async def test_an_abort_leaves_v1_as_it_was(tmp_path: Path, steps: int) -> None:
    async with rig_at(tmp_path, running_max=8, v1=(8, 1_000), lost_births=4) as rig:
        await _mixed(rig)
        before, counts = await rig.old(AccountSnapshot, "snapshot", -1), await rig.counts()
        frozen = await rig.freeze()
        for step in STEPS[: steps + 1]:
            await _step(rig, step, "m1", frozen)
        await rig.abort()
        assert await rig.old(AccountSnapshot, "snapshot", -1) == before
        assert await rig.counts() == counts
        account = rig.shards[rig.home(ACCOUNT)].host.local(ACCOUNT)
        assert not any(account.ctx.scan(table, (ACME,)) for table in Account.REGISTRY)
        assert (await rig.gatekeeper()).holders == 0
        await rig.create("after", params=b"1")
        await rig.move("m2")
        await rig.heal("m2")

        async def ended() -> bool:
            return (await rig.status()).ended == 17

        await rig.until(ended, 200)
        assert rig.bodies.most <= 8


async def test_after_the_first_create_there_is_no_way_back(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.move()
        await rig.ask(rig.key("new"), creates=False)
        assert (await rig.status()).first_create_ms == 0
        at_ms = rig.clock.now_ms()
        await rig.create_v2("new")
        rig.crash(rig.home(OLD))
        with pytest.raises(AbortRefused) as caught:
            await rig.old(None, "abort", "m1")
        assert at_ms <= caught.value.data["since_ms"] <= rig.clock.now_ms()
        assert (await rig.status()).plane == "v2"


async def test_a_change_of_the_registry_ends_the_way_back_too(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.move()
        assert await rig.ask("", creates=True) == Asked(False, True)
        with pytest.raises(AbortRefused):
            await rig.old(None, "abort", "m1")


async def test_what_is_healed_can_not_be_aborted(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=2) as rig:
        await rig.create("0")
        await rig.create("1")
        await rig.move()
        with pytest.raises(StaleMigration):
            await rig.old(None, "healed", "m1")  # one is unborn
        await rig.heal()
        with pytest.raises(AbortRefused):
            await rig.old(None, "abort", "m1")


# --- healing --------------------------------------------------------------------------------


async def test_the_unborn_are_born_and_end(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=1) as rig:
        views = {f"{n}": await rig.create(f"{n}", params=b"0.1") for n in range(30)}
        await rig.move()
        assert [row.id for row in await rig.rows_v2()] == list(views)
        uuid = rig.records["work"].uuid
        assert await rig.old(dict[str, int], "unborn_counts", uuid, "") == {"queued": 30}
        assert await rig.old(dict[str, int], "unborn_counts", uuid, "1") == {"queued": 11}
        await rig.heal()
        await rig.until_ended(30)
        for instance_id, view in views.items():
            found = await rig.view(instance_id)
            assert (found.run_id, found.created_ms, found.status, found.params) == (
                view.run_id, view.created_ms, "complete", b"0.1",
            )  # fmt: skip
        assert rig.bodies.begun == 30


async def test_who_is_asked_for_is_born_at_once(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=1) as rig:
        await rig.create("one", params=b"0.1")
        await rig.move()
        with pytest.raises(InstanceNotFound):
            await rig.view("one")
        answers = await asyncio.gather(
            *(rig.ask(rig.key("one"), creates=n % 2 == 0) for n in range(4)),
            rig.old(int, "heal", "m1"),
        )
        assert answers == [Asked(True, True)] * 4 + [0]
        assert (await rig.view("one")).status in ("queued", "running")
        assert await rig.ask(rig.key("one"), creates=True) == Asked(False, True)
        assert await rig.ask(rig.key("two"), creates=True) == Asked(False, True)
        await rig.heal()
        assert await rig.ask(rig.key("two"), creates=True) == Asked(False, False)
        await rig.until_ended(1)
        assert rig.bodies.begun == 1


async def test_healing_goes_on_when_the_shard_is_back(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=1, data_shards=1) as rig:
        for n in range(5):
            await rig.create(f"{n}", params=b"0")
        await rig.move()
        rig.shards["d0"].stop()
        assert await rig.old(int, "heal", "m1") == 5
        with pytest.raises(ToqueError):
            await rig.ask(rig.key("1"), creates=True)
        rig.crash("d0")
        await rig.heal()
        await rig.until_ended(5)


async def test_a_shard_that_is_away_keeps_no_other_from_healing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "V1_BIRTHS_PER_HEAL_MAX", 4)
    async with rig_at(tmp_path, lost_births=1) as rig:
        for n in range(30):
            await rig.create(f"{n}", params=b"0")
        here = sum(rig.home(EntityRef("Engine", rig.key(f"{n}"))) == "d1" for n in range(30))
        assert 0 < here < 30
        await rig.move()
        rig.shards["d0"].stop()
        for _ in range(8):
            await rig.old(int, "heal", "m1")
        assert (await rig.status()).unborn == 30 - here
        rig.crash("d0")
        await rig.heal()
        await rig.until_ended(30)


async def test_an_id_that_another_create_has_is_left_to_it(tmp_path: Path) -> None:
    """The two stores disagree: an Engine of that id is there, by another request."""
    async with rig_at(tmp_path, lost_births=1) as rig:
        await rig.create("one", params=b"0.1")
        request = rig.request(souschefs=1, params=b"0.2")
        ref = EntityRef("Engine", rig.key("one"))
        await rig.call(InstanceView, ref, "create", request)
        await rig.move()
        await rig.heal()
        assert (await rig.view("one")).params == b"0.2"


async def test_nobody_of_a_deleted_workflow_is_born(tmp_path: Path) -> None:
    """Whether it was deleted on V1, and its unborn were not dropped in time, or on V2."""
    async with rig_at(tmp_path, lost_births=1) as rig:
        for name in ("work", "ask"):
            await rig.create("one", name)
        old = rig.entity()
        old._registry.delete_workflow("ask")
        await rig.move()
        assert await rig.old(int, "drop_unborn", rig.records["work"].uuid) == 1
        assert (await rig.status()).unborn == 1
        await rig.heal()
        for name in ("work", "ask"):
            with pytest.raises(InstanceNotFound):
                await rig.view("one", name)


class Backwards:
    """A codec whose work is seen at once."""

    id = "backwards"

    def encode(self, raw: bytes) -> bytes:
        return raw[::-1]

    def decode(self, kept: bytes) -> bytes:
        return kept[::-1]


async def test_payloads_of_the_unborn_are_sealed(tmp_path: Path) -> None:
    codecs = Codecs({ACME: Backwards()})
    secret = b'"a secret of several words"'
    async with rig_at(tmp_path, lost_births=1, codecs=codecs) as rig:
        await rig.create("one", "work", params=b"0", request_id="r")
        await rig.create("two", "ask", params=secret)
        for opened in rig.shards.values():
            await opened.drain()
        files = [path.read_bytes() for path in (tmp_path / "shards").iterdir()]
        assert any(secret[::-1] in content for content in files)
        assert not any(secret in content for content in files)
        await rig.move()
        await rig.heal()
        await rig.until_ended(1)
        assert (await rig.view("two", "ask")).params == secret


# --- after the move -------------------------------------------------------------------------


async def test_what_v1_made_reports_to_accountold_for_life(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.create("one", "ask")
        await asyncio.sleep(1)
        await rig.move()
        await rig.heal()
        engine = EntityRef("Engine", rig.key("one", "ask"))
        await rig.router.call(engine, "send_event", "answer", b"1", "r1")
        await rig.until_ended(1)
        await rig.router.call(engine, "restart", "r2", "", 0, "")

        async def waits() -> bool:
            return (await rig.status()).waiting == 1

        await rig.until(waits)
        assert (await rig.call(dict[str, Any], engine, "waiting"))["souschef"] == -1
        await rig.router.call(engine, "delete", "r3")

        async def gone() -> bool:
            status = await rig.status()
            return not status.waiting + status.ended

        await rig.until(gone)


async def test_accountold_retires_when_the_last_retention_ends(tmp_path: Path) -> None:
    async with rig_at(tmp_path, retention_ms=60_000, lost_births=3) as rig:
        for n in range(6):
            await rig.create(f"{n}", params=b"1")
        await rig.move()
        assert await rig.old(bool, "retire", "m1") is False
        await rig.heal()
        await rig.until_ended(6)
        assert await rig.old(bool, "retire", "m1") is False
        last_ms = (await rig.status()).last_end_ms
        await asyncio.sleep((last_ms - rig.clock.now_ms()) / 1_000 - 1)
        assert await rig.old(bool, "retire", "m1") is False
        await asyncio.sleep(2 * limits.V1_ID_LINGER_MS / 1_000)
        assert await rig.old(bool, "retire", "m1") is True
        rig.crash(rig.home(OLD))
        assert await rig.old(bool, "retire", "m1") is True
        await rig.call(None, ACCOUNT, "retired", "m1")
        snapshot = await rig.snapshot()
        assert (snapshot.plane.plane, snapshot.plane.from_v1) == ("v2", False)
        ctx = rig.entity().ctx
        assert not any(ctx.scan(table, (OLD.key,)) for table in Account.REGISTRY)
        assert (await rig.create_v2("new", wait_ms=5_000)).status == "complete"


async def test_a_workflows_limit_waits_until_v1_is_gone(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.move()
        limit = LimitsChange(running_max=5)
        before = await rig.snapshot()
        for _ in range(2):
            with pytest.raises(PlaneUnsupported):
                await rig.call(AccountSnapshot, ACCOUNT, "change_limits", "work", limit)
            await rig.heal()
        assert (await rig.snapshot()).workflows == before.workflows
        weight = LimitsChange(weight=3, souschefs=2)
        await rig.call(AccountSnapshot, ACCOUNT, "change_limits", "work", weight)
        await rig.call(None, ACCOUNT, "retired", "m1")
        await rig.call(AccountSnapshot, ACCOUNT, "change_limits", "work", limit)
        record = await rig.call(WorkflowRecord, ACCOUNT, "get_workflow", "work")
        assert (record.running_max, record.weight) == (5, 3)


async def test_the_lease_weighs_as_many_workflows_as_are_left(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.create("a", "ask")
        await rig.create("w", params=b"5")
        await asyncio.sleep(1)
        assert (await rig.move()).workflows == 2
        keeper = rig.shards[rig.home(GATEKEEPER)].host.local(GATEKEEPER)
        assert isinstance(keeper, Gatekeeper)
        assert keeper._book.workflows[f"{ACME}/-"].weight == 2
        await rig.until_ended(1)

        async def lowered() -> bool:
            return keeper._book.workflows[f"{ACME}/-"].weight == 1

        await rig.until(lowered)


async def test_the_lease_weighs_no_more_than_a_weight_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WORKFLOW_WEIGHT_MAX", 2)
    async with rig_at(tmp_path) as rig:
        for n in range(3):
            name = f"w{n}"
            rig.records[name] = await rig.old(
                WorkflowRecord, "put_workflow", name, "work", "app", "h1", False
            )
            await rig.create("one", name, params=b"5")
        assert (await rig.move()).workflows == 2
        await rig.until_ended(3)


async def test_a_large_registry_comes_over_in_parts(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        for n in range(2 * limits.REGISTRY_PART_ROWS_MAX):
            await rig.router.call(OLD, "put_workflow", f"w{n % 7}", "work", "app", f"h{n}", True)
        await rig.router.call(OLD, "put_script", "s", "h", [("w1", "work")], True)
        steps = LimitsChange(steps=7)
        before = await rig.old(AccountSnapshot, "change_limits", "w1", steps)
        versions = await rig.router.call(OLD, "list_versions", "w1")
        scripts = await rig.router.call(OLD, "list_scripts")
        for number in (1, 2):
            await rig.move(f"m{number}")
            after = await rig.snapshot()
            assert after.settings == before.settings
            assert _by_name(after) == _by_name(before)
            assert after.generation == before.generation
            assert await rig.router.call(ACCOUNT, "list_versions", "w1") == versions
            assert await rig.router.call(ACCOUNT, "list_scripts") == scripts
            if number == 1:
                await rig.abort("m1")
        with pytest.raises(InvalidArgument):
            await rig.router.call(OLD, "registry_part", "m2", "nonsense")


def _by_name(snapshot: AccountSnapshot) -> list[WorkflowRecord]:
    return sorted(snapshot.workflows or (), key=lambda record: record.name)


async def test_a_registry_that_came_by_half_is_not_served(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.freeze()
        part = await rig.old(RegistryPart, "registry_part", "m1", None)
        assert part.after is not None
        await rig.call(None, ACCOUNT, "adopt_part", "m1", part)
        with pytest.raises(StaleMigration):
            await rig.call(None, ACCOUNT, "adopt", "m1")
        with pytest.raises(WrongControlPlane):
            await rig.snapshot()


async def test_an_account_of_v2_is_nobodys_to_adopt(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        other = ACCOUNT._replace(key="other")
        await rig.router.call(other, "put_workflow", "work", "work", "app", "h1", False)
        with pytest.raises(StaleMigration):
            await rig.call(None, other, "adopt_part", "m1", RegistryPart("accounts", [], None))
        with pytest.raises(StaleMigration):
            await rig.call(None, other, "adopt", "m1")
        old = OLD._replace(key="other/-/old")
        with pytest.raises(StaleMigration):
            await rig.call(Frozen, old, "freeze", "m1")
        assert len((await rig.call(AccountSnapshot, other, "snapshot", -1)).workflows or ()) == 1
