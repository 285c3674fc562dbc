"""After the route: who is unborn is born, and what V1 made lives on until it is retired."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.migration.rig import ACCOUNT, ACME, GATEKEEPER, OLD, rig_at
from toque.engines.views import InstanceView
from toque.gatekeeper.account import Account
from toque.gatekeeper.gatekeeper import Gatekeeper
from toque.gatekeeper.messages import (
    AccountSnapshot,
    LimitsChange,
    WorkflowRecord,
)
from toque.gatekeeper.planes import PlaneUnsupported, StaleMigration, WrongControlPlane
from toque.migration.messages import Asked, Frozen, RegistryPart
from toque.runtime import limits
from toque.runtime.errors import InstanceNotFound, InvalidArgument, ToqueError
from toque.runtime.ids import EntityRef
from toque.runtime.payload_codec import Codecs
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


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
