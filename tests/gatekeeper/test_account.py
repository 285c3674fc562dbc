"""The Account: workflows, versions, generations, limits; all of it after a crash too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.runtime.shards import Cluster
from toque.gatekeeper.account import Account
from toque.gatekeeper.gatekeeper import Gatekeeper, GatekeeperEnv
from toque.gatekeeper.messages import (
    AccountSnapshot,
    Deployed,
    DeployedWorkflow,
    GatekeeperStatistics,
    LimitsChange,
    RateReply,
    RateRequest,
    ScriptRecord,
    Settings,
    VersionRecord,
    WorkflowRecord,
)
from toque.gatekeeper.spread import SpreadRules
from toque.gatekeeper.workflow_registry import AccountEnv
from toque.runtime import limits
from toque.runtime.errors import (
    InvalidArgument,
    InvalidId,
    ScriptNotFound,
    TooManyWorkflows,
    WorkflowNotFound,
    WorkflowOwned,
)
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)

ACME = EntityRef("Account", "acme")


class Accounts:
    """Calls to one account, typed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def ask(self, method: str, *args: Any) -> Any:
        return await self.cluster.router.call(ACME, method, *args)

    async def put(self, name: str, code_hash: str = "h1", script: str = "app") -> WorkflowRecord:
        found = await self.ask("put_workflow", name, "Order", script, code_hash)
        return msgspec.convert(found, WorkflowRecord)

    async def get(self, name: str) -> WorkflowRecord:
        return msgspec.convert(await self.ask("get_workflow", name), WorkflowRecord)

    async def versions(self, name: str) -> list[VersionRecord]:
        return msgspec.convert(await self.ask("list_versions", name), list[VersionRecord])

    async def deploy(
        self, script: str, code_hash: str, take_over: bool = False, **classes: str
    ) -> Deployed:
        given = list(classes.items())
        found = await self.ask("put_script", script, code_hash, given, take_over)
        return msgspec.convert(found, Deployed)

    async def register(
        self, name: str, class_name: str, script: str, running_max: int = 0
    ) -> DeployedWorkflow:
        change = LimitsChange(running_max=running_max)
        found = await self.ask("register", name, class_name, script, change)
        return msgspec.convert(found, DeployedWorkflow)

    async def snapshot(self, known: int = -1) -> AccountSnapshot:
        return msgspec.convert(await self.ask("snapshot", known), AccountSnapshot)

    async def gatekeeper(self) -> GatekeeperStatistics:
        found = await self.cluster.router.call(EntityRef("Gatekeeper", "acme"), "statistics")
        return msgspec.convert(found, GatekeeperStatistics)


@asynccontextmanager
async def accounts_at(folder: Path) -> AsyncIterator[Accounts]:
    classes = {"Account": Account, "Gatekeeper": Gatekeeper}
    gatekeeper = GatekeeperEnv(1_000, spread=SpreadRules(least=3))
    envs = {"Account": AccountEnv(1_000, 3), "Gatekeeper": gatekeeper}
    cluster = Cluster(folder, classes, envs)
    try:
        yield Accounts(cluster)
    finally:
        await cluster.close()


async def test_the_same_code_again_changes_nothing(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        first = await acme.put("order")
        assert (first.souschefs, first.generation, first.weight, first.running_max) == (3, 1, 1, 0)
        assert await acme.put("order") == first
        assert await acme.get("order") == first
        assert len(await acme.versions("order")) == 1


async def test_other_code_is_a_new_version_under_the_same_uuid(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        first = await acme.put("order")
        second = await acme.put("order", "h2")
        third = await acme.put("order", "h1")
        assert first.uuid == second.uuid == third.uuid
        assert len({first.version_id, second.version_id, third.version_id}) == 3
        assert [v.code_hash for v in await acme.versions("order")] == ["h1", "h2", "h1"]
        assert (first.generation, second.generation, third.generation) == (1, 2, 3)


async def test_a_moved_script_keeps_the_version(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        first = await acme.put("order")
        with pytest.raises(WorkflowOwned, match="belongs to script 'app', not 'other'"):
            await acme.put("order", script="other")
        assert await acme.get("order") == first
        found = await acme.ask("put_workflow", "order", "Order", "other", "h1", True)
        moved = msgspec.convert(found, WorkflowRecord)
        assert (moved.script_name, moved.version_id) == ("other", first.version_id)
        assert moved.generation == 2


async def test_a_script_is_deployed_as_a_whole(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        first = await acme.deploy("shop", "h1", order="Order", mail="Mail")
        assert [(w.record.name, w.is_new) for w in first.workflows] == [
            ("order", True), ("mail", True),
        ]  # fmt: skip
        assert first.script.classes == [("order", "Order"), ("mail", "Mail")]
        before = await acme.snapshot()
        again = await acme.deploy("shop", "h1", order="Order", mail="Mail")
        assert [w.record for w in again.workflows] == [w.record for w in first.workflows]
        assert not any(w.is_new for w in again.workflows)
        assert await acme.snapshot() == before

        second = await acme.deploy("shop", "h2", order="Order", pay="Pay")
        assert {w.record.name: w.record.code_hash for w in second.workflows} == {
            "order": "h2", "pay": "h2",
        }  # fmt: skip
        assert second.left == ["mail"]
        assert (await acme.get("mail")).code_hash == "h1"
        acme.cluster.crash("c0")
        acme.cluster.open("c0")
        scripts = msgspec.convert(await acme.ask("list_scripts"), list[ScriptRecord])
        assert scripts == [second.script]


async def test_a_name_of_another_script_is_refused_with_all_of_the_deploy(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        await acme.deploy("shop", "h1", order="Order")
        before = await acme.snapshot()
        with pytest.raises(WorkflowOwned, match="'order' belongs to script 'shop'") as caught:
            await acme.deploy("other", "h2", new="New", order="Order")
        assert caught.value.data == {"workflow": "order", "owner": "shop"}
        assert await acme.snapshot() == before
        assert len(await acme.ask("list_scripts")) == 1
        taken = await acme.deploy("other", "h2", True, new="New", order="Order")
        assert {w.record.script_name for w in taken.workflows} == {"other"}


async def test_a_class_may_have_another_name_which_follows_its_script(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        with pytest.raises(ScriptNotFound, match="no script 'shop'"):
            await acme.register("vip-order", "Order", "shop")
        await acme.deploy("shop", "h1", order="Order", mail="Mail")
        with pytest.raises(ScriptNotFound, match=r"no workflow class 'Nope'; it has Mail, Order"):
            await acme.register("vip-order", "Nope", "shop")
        named = await acme.register("vip-order", "Order", "shop")
        assert named.is_new
        assert (named.record.class_name, named.record.code_hash) == ("Order", "h1")
        before = await acme.snapshot()
        with pytest.raises(InvalidArgument, match="running_max must be 0 to"):
            await acme.register("vip-order", "Mail", "shop", -1)
        assert await acme.snapshot() == before
        moved = await acme.register("vip-order", "Mail", "shop", 7)
        assert (moved.record.uuid, moved.record.running_max) == (named.record.uuid, 7)
        assert moved.is_new
        assert moved.record.version_id != named.record.version_id, "another class, other code"
        assert (await acme.deploy("shop", "h2", mail="Mail")).left == ["order"]
        assert (await acme.get("vip-order")).code_hash == "h2"


async def test_a_deleted_name_is_free_and_gets_a_new_uuid(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        first = await acme.put("order")
        await acme.ask("delete_workflow", "order")
        with pytest.raises(WorkflowNotFound):
            await acme.get("order")
        second = await acme.put("order")
        assert first.uuid != second.uuid
        assert len(await acme.versions("order")) == 1
        assert second.generation == 3


async def test_snapshots_go_by_generation(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        assert await acme.snapshot() == AccountSnapshot(0, 1_000, [])
        record = await acme.put("order")
        assert await acme.snapshot(0) == AccountSnapshot(1, 1_000, [record])
        assert await acme.snapshot(1) == AccountSnapshot(1, 1_000, None)


async def test_all_is_there_after_a_crash(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        order, mail = await acme.put("order"), await acme.put("mail")
        await acme.ask("set_limits", 7)
        acme.cluster.crash("c0")
        acme.cluster.open("c0")
        assert await acme.snapshot() == AccountSnapshot(3, 7, [mail, order])


async def test_limits_reach_the_gatekeeper_though_it_crashes(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        record = await acme.put("order")
        await acme.ask("set_limits", 7)
        await acme.ask("set_workflow_limits", "order", 3, 5)
        acme.cluster.crash("c0")
        acme.cluster.open("c0")
        assert (await acme.get("order")).weight == 3
        await asyncio.sleep(5)
        gatekeeper = acme.cluster.hosts["c0"].local(EntityRef("Gatekeeper", "acme"))
        assert isinstance(gatekeeper, Gatekeeper)
        assert (await acme.gatekeeper()).running_max == 7
        entry = gatekeeper._book.workflows[f"acme/{record.uuid}"]
        assert (entry.weight, entry.running_max) == (3, 5)


async def test_an_account_holds_so_many_workflows(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        most = limits.WORKFLOWS_PER_ACCOUNT_MAX
        assert most > limits.SCAN_ROWS_MAX
        await asyncio.gather(*(acme.put(f"w{n}") for n in range(most)))
        with pytest.raises(TooManyWorkflows):
            await acme.put("one-more")
        await acme.put("w0", "h2")  # deploying is no new workflow
        acme.cluster.crash("c0")
        acme.cluster.open("c0")
        found = (await acme.snapshot()).workflows
        assert found is not None
        assert len(found) == most


async def test_settings_of_all_workflows_are_there_after_a_restart(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        count = limits.SCAN_ROWS_MAX + 50
        host = acme.cluster.hosts["c0"]
        account, gatekeeper = host.local(ACME), host.local(EntityRef("Gatekeeper", "acme"))
        assert isinstance(account, Account)
        assert isinstance(gatekeeper, Gatekeeper)
        for n in range(count):
            account._settings.put(f"u{n:05}", Settings(creates_per_second=7, queued_max=9))
            gatekeeper.set_rate(f"u{n:05}", 7)
            gatekeeper.set_queue(f"u{n:05}", 9)
            gatekeeper.set_spread(f"u{n:05}", 5)
        await host.store.flush()
        acme.cluster.crash("c0")
        acme.cluster.open("c0")
        host = acme.cluster.hosts["c0"]
        account, gatekeeper = host.local(ACME), host.local(EntityRef("Gatekeeper", "acme"))
        assert isinstance(account, Account)
        assert isinstance(gatekeeper, Gatekeeper)
        last = account._settings.get(f"u{count - 1:05}")
        assert (last.creates_per_second, last.queued_max) == (7, 9)
        assert len(account._settings.all) == len(gatekeeper._fixed) == count


@pytest.mark.parametrize(
    ("method", "args", "error"),
    [
        ("put_workflow", ("no spaces", "C", "s", "h"), InvalidId),
        ("put_script", ("s", "h", [], False), InvalidArgument),
        ("put_script", ("s", "h", [("order", "O"), ("no spaces", "C")], True), InvalidId),
        ("put_script", ("no spaces", "h", [("order", "Order")], True), InvalidArgument),
        ("put_script", ("s--t", "h", [("order", "Order")], True), InvalidArgument),
        ("put_script", ("", "h", [("order", "Order")], True), InvalidArgument),
        ("get_workflow", ("missing",), WorkflowNotFound),
        ("list_versions", ("missing",), WorkflowNotFound),
        ("delete_workflow", ("missing",), WorkflowNotFound),
        ("set_souschefs", ("missing", 2), WorkflowNotFound),
        ("set_souschefs", ("order", 0), InvalidArgument),
        ("set_souschefs", ("order", limits.SOUSCHEFS_PER_WORKFLOW_MAX + 1), InvalidArgument),
        ("set_workflow_limits", ("order", 0, 1), InvalidArgument),
        ("set_workflow_limits", ("order", 1, -1), InvalidArgument),
        ("set_limits", (-1,), InvalidArgument),
        ("set_limits", ("many",), InvalidArgument),
    ],
)
async def test_bad_input_is_refused_and_changes_nothing(
    tmp_path: Path, method: str, args: tuple[Any, ...], error: type[Exception]
) -> None:
    async with accounts_at(tmp_path) as acme:
        await acme.put("order")
        before = await acme.snapshot()
        with pytest.raises(error):
            await acme.ask(method, *args)
        assert await acme.snapshot() == before


async def test_souschefs_can_be_set(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        await acme.put("order")
        await acme.ask("set_souschefs", "order", 8)
        assert (await acme.get("order")).souschefs == 8


class Front:
    """A front end that tells the Gatekeeper of creates."""

    def __init__(self, acme: Accounts) -> None:
        self.acme = acme
        self.seq = 0

    async def tells(self, uuid: str, per_second: int, seconds: int) -> RateReply:
        """So many creates a second come, for a while."""
        for _ in range(seconds):
            self.seq += 1
            request = RateRequest("f", self.seq, {uuid: per_second * 1_000}, {})
            gatekeeper = EntityRef("Gatekeeper", "acme")
            found = await self.acme.cluster.router.call(gatekeeper, "lease_rates", request)
            await asyncio.sleep(1)
        return msgspec.convert(found, RateReply)


async def test_the_number_of_souschefs_follows_the_creates_and_is_durable(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        first = await acme.put("order")
        front = Front(acme)
        await front.tells(first.uuid, 5 * limits.SOUSCHEF_CREATES_PER_SECOND, 3)
        grown = await acme.get("order")
        assert (grown.souschefs, grown.souschefs_auto) == (5, True)
        assert grown.generation > first.generation  # front ends hear of it
        acme.cluster.crash("c0")
        acme.cluster.open("c0")
        assert await acme.get("order") == grown
        await front.tells(first.uuid, 1, limits.SPREAD_SHRINK_LOOKS + 2)
        assert (await acme.get("order")).souschefs == 3  # the server's least


async def test_a_number_that_was_set_stays_until_it_is_automatic_again(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        uuid = (await acme.put("order")).uuid
        front = Front(acme)
        fixed = msgspec.convert(await acme.ask("set_souschefs", "order", 2), WorkflowRecord)
        assert (fixed.souschefs, fixed.souschefs_auto) == (2, False)
        await front.tells(uuid, 10_000, 4)
        assert await acme.get("order") == fixed
        acme.cluster.crash("c0")
        acme.cluster.open("c0")
        await front.tells(uuid, 10_000, 4)
        assert await acme.get("order") == fixed
        await acme.ask("spread", uuid, 9)  # told before the number was set, and late
        assert await acme.get("order") == fixed
        await acme.ask("set_souschefs", "order", None)
        assert (await acme.get("order")).souschefs_auto
        await front.tells(uuid, 10_000, 4)
        assert (await acme.get("order")).souschefs == 20


async def test_how_many_may_queue_is_told_to_front_ends_and_is_durable(tmp_path: Path) -> None:
    async with accounts_at(tmp_path) as acme:
        uuid = (await acme.put("order")).uuid
        front = Front(acme)
        await acme.ask("change_limits", "order", LimitsChange(queued_max=50))
        for _ in range(2):
            assert (await front.tells(uuid, 0, 2)).room == {uuid: 25}
            acme.cluster.crash("c0")
            acme.cluster.open("c0")
            assert (await acme.snapshot()).settings[uuid].queued_max == 50
        await acme.ask("delete_workflow", "order")
        assert (await front.tells(uuid, 0, 2)).room == {uuid: limits.QUEUED_PER_WORKFLOW_MAX // 2}
