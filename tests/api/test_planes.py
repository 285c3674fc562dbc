"""Accounts on V1 and such that move: the same API, and nobody who calls it is refused for that.

Over a whole embedded runtime, whose front ends learn of a move only by calls that come back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.moving import ID, Move
from toque import workflow
from toque.api.client import Client
from toque.api.client_embedded import EmbeddedBackend
from toque.api.listing import ListQuery
from toque.api.planes import ON_V1, Planes, Way, way_on_v1
from toque.api.service import ControlPlane, NewInstance
from toque.api.wiring import Runtime, embedded, start_embedded
from toque.engines.views import CreateRequest
from toque.gatekeeper.messages import LimitsChange
from toque.gatekeeper.planes import (
    ON_V2,
    InstanceUnborn,
    PlaneInfo,
    PlaneUnsupported,
    WrongControlPlane,
)
from toque.gatekeeper.refusals import AccountAlreadyExists, AccountNotFound, RateLimited
from toque.migration.messages import Forwarded, OldCreate
from toque.migration.refusals import AbortRefused
from toque.runtime.clock import SystemClock
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InstanceNotFound,
    InvalidArgument,
    RequestIdReused,
    WorkflowNotFound,
)
from toque.runtime.ids import EntityRef, old_account

ENGINE = EntityRef("Engine", "shop/u/order-1")
OLD = old_account("shop")
HEALING = PlaneInfo("v2", healing=True, from_v1=True)


@workflow
async def double(event: Any, step: Any) -> int:
    return int(await step.do("double", lambda: event.payload * 2))


@workflow
async def ask(event: Any, step: Any) -> Any:
    return (await step.wait_for_event("ask", "answer", timeout="1 hour")).payload


FLOWS = [double, ask]


@asynccontextmanager
async def on_v1(path: Path, **options: Any) -> AsyncIterator[Runtime]:
    """A runtime whose account `default` was made on V1."""
    options = {"control_plane": "v1", "data_shards": 2, **options}
    async with embedded(path / "data", FLOWS, **options) as runtime:
        yield runtime


@asynccontextmanager
async def another_front_end(runtime: Runtime) -> AsyncIterator[ControlPlane]:
    """One that has learnt nothing yet."""
    front = ControlPlane(runtime.router, runtime.placement, SystemClock(), SystemEntropy())
    try:
        yield front
    finally:
        await front.close()


def client_of(front: ControlPlane) -> Client:
    return Client(EmbeddedBackend(front, "default"), SystemEntropy())


async def ids(front: ControlPlane, name: str, **query: Any) -> list[str]:
    """Ids of a whole list, by following its cursor."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await front.list_instances("default", name, ListQuery(cursor=cursor, **query))
        found += [row.id for row in page.page.rows]
        cursor = page.cursor
        if cursor is None:
            return found


# --- the way --------------------------------------------------------------------------------


def create_of(request_id: str) -> CreateRequest:
    return CreateRequest("w", "W", "v", "h", b"null", request_id, 1, "api", 0)


CREATE = create_of("r")


@pytest.mark.parametrize(
    ("call", "way"),
    [
        (
            Way(EntityRef("Account", "shop"), "snapshot", (3,)),
            Way(OLD, "snapshot", (3,)),
        ),
        (
            Way(EntityRef("Account", "shop"), "set_plane", ("v1",)),
            Way(EntityRef("Account", "shop"), "set_plane", ("v1",)),
        ),
        (Way(ENGINE, "create", (CREATE,)), Way(OLD, "create", (OldCreate(ENGINE.key, CREATE),))),
        (
            Way(ENGINE, "view", (True, False)),
            Way(OLD, "forward", (Forwarded(ENGINE.key, "view", [True, False], 900),)),
        ),
        (Way(EntityRef("Gatekeeper", "shop"), "statistics", ()), Way(OLD, "status", ())),
        (
            Way(EntityRef("Clearing", "shop/u"), "is_running", ()),
            Way(EntityRef("Clearing", "shop/u"), "is_running", ()),
        ),
        (Way(OLD, "status", ()), Way(OLD, "status", ())),
    ],
)
def test_the_way_on_v1(call: Way, way: Way) -> None:
    assert way_on_v1("shop", call, 900) == way


class Refused:
    """A router that is never to be called."""

    def call(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def wrong(is_on: str) -> WrongControlPlane:
    return WrongControlPlane("", {"account": "shop", "requires": ["v2"], "is": is_on})


def test_what_a_front_end_knows_of_an_account() -> None:
    planes, moved = Planes(Refused()), []
    planes.moved = moved.append
    assert planes.of("shop") == ON_V2
    planes.refused(wrong("v1"))
    assert (planes.of("shop"), moved) == (ON_V1, ["shop"])
    planes.refused(wrong("v1"))  # a call that was under way
    planes.refused(wrong("moving"))  # it is waited for
    assert (planes.of("shop"), moved) == (ON_V1, ["shop"])
    planes.refused(wrong("v2"))  # until a snapshot says otherwise there may be some to heal
    assert (planes.of("shop"), moved) == (HEALING, ["shop", "shop"])
    planes.note("shop", PlaneInfo("v2", healing=False, from_v1=True))
    assert planes.of("shop") == ON_V2
    assert planes.reroutes == 4


# --- an account on V1 -----------------------------------------------------------------------


async def test_the_whole_life_of_instances_on_v1(tmp_path: Path) -> None:
    async with on_v1(tmp_path) as runtime:
        client = runtime.client()
        assert (await client.run_instance("double", "a", 21, timeout=30)).output == 42
        asking = await client.create_instance("ask", "b")
        with pytest.raises(InstanceAlreadyExists):
            await client.create_instance("ask", "b")
        with pytest.raises(InstanceNotFound):
            await client.instance("ask", "nobody").status()
        while (await asking.status()).status != "waiting":
            pass
        assert (await asking.why()).reasons[0].kind == "event"
        await asking.pause()
        while (await asking.status()).status != "paused":
            pass
        await asking.resume()
        await asking.send_event("answer", {"n": 1})
        assert (await asking.wait(30)).output == {"n": 1}
        await asking.restart()
        await asking.terminate()
        assert (await asking.status()).status == "terminated"
        events = [event.type async for event in client.instance("double", "a").events()]
        assert events[-1] == "workflow_completed"
        made = await client.create_instances(
            "double", [{"id": f"n{n}", "params": n} for n in range(9)]
        )
        assert Counter(each.outcome for each in made) == {"created": 9}
        for n in range(9):
            assert (await client.instance("double", f"n{n}").wait(30)).output == 2 * n
        front = runtime.control_plane
        wanted = [*(f"n{n}" for n in range(9)), "a"]
        assert sorted(await ids(front, "double", per_page=3)) == sorted(wanted)
        assert await ids(front, "double", prefix="n", newest_first=False, per_page=4) == wanted[:-1]
        while (await front.get_workflow("default", "double")).counts["complete"] != 10:
            pass  # the last Engines have to report first
        await client.instance("double", "a").delete()
        while "a" in await ids(front, "double"):  # its Engine has to report first
            pass
        assert all((await front.ready()).values())


async def test_what_v1_does_not_have_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with on_v1(tmp_path) as runtime:
        admin = runtime.control_plane.limits
        before = await admin.of_workflow("default", "double")
        assert before.creates_per_second == 10  # 100 in 10 s
        for change in (
            LimitsChange(weight=2),
            LimitsChange(souschefs=3),
            LimitsChange(running_max=5),
            LimitsChange(queued_max=7),
        ):
            with pytest.raises(PlaneUnsupported, match="migrate"):
                await admin.of_workflow("default", "double", change)
        assert await admin.of_workflow("default", "double") == before
        changed = await admin.of_account("default", LimitsChange(running_max=17))
        assert (changed.running_max, (await admin.of_account("default")).running_max) == (17, 17)


async def test_who_queues_on_v1_is_told_where(tmp_path: Path) -> None:
    async with on_v1(tmp_path, running_max=0) as runtime:
        client = runtime.client()
        for name in ("a", "b"):
            await client.create_instance("double", name, 1)
        while (
            slot := (await client.instance("double", "b").why()).slot
        ) is None or slot.queued < 2:
            pass
        assert (slot.souschef, slot.position, slot.limited_by) == ("default/-/old", 2, "account")
        await Move(runtime.router).to_v2()  # it queues there still
        assert (await client.instance("double", "b").why()).slot == slot


async def test_v1_takes_so_many_creates_and_a_batch_goes_on_later(
    tmp_path: Path,
) -> None:
    async with on_v1(tmp_path, v1=(4_500, 5, 0)) as runtime:
        front = runtime.control_plane
        batch = [NewInstance(f"n{n}") for n in range(7)]
        with pytest.raises(RateLimited, match="5 creates in 10 s") as refused:
            await front.create_instances("default", "ask", batch, request_id="r")
        assert 0 < refused.value.data["retry_after_ms"] <= 11_000
        assert await ids(front, "ask", newest_first=False) == [f"n{n}" for n in range(5)]
        again = await front.create_instances("default", "ask", batch[:5], request_id="r")
        assert [view.id for view in again.created] == [f"n{n}" for n in range(5)]  # not counted
        with pytest.raises(RateLimited):
            await front.create_instance("default", "double")
        assert (await front.get_workflow("default", "double")).triggered_ms is None


# --- an account that moves ------------------------------------------------------------------


LOST_BIRTHS = 3
"""Of so many creates on V1 the last one's Engine is never made."""
FAULTY = (4_500, 1_000, LOST_BIRTHS)


async def test_what_has_no_engine_is_seen_on_v1_and_lives_on_v2(
    tmp_path: Path,
) -> None:
    names = [f"n{n}" for n in range(1, 10)]
    async with on_v1(tmp_path, v1=FAULTY) as runtime, another_front_end(runtime) as other:
        client, move = runtime.client(), Move(runtime.router)
        for name in names:
            await client.create_instance("double", name, 4)
        for name in names:
            if int(name[1]) % LOST_BIRTHS:
                assert (await client.instance("double", name).wait(30)).output == 8
        unborn = names[LOST_BIRTHS - 1 :: LOST_BIRTHS]
        hasty = client_of(other).with_options(retry_for=0)
        for name in unborn:
            assert (await hasty.instance("double", name).status()).status == "queued"
        with pytest.raises(InstanceUnborn):
            await hasty.instance("double", unborn[0]).pause()
        for front in (runtime.control_plane, other):
            assert await ids(front, "double", newest_first=False, per_page=2) == names
            assert await ids(front, "double", statuses=("queued",), newest_first=False) == unborn
        first = await other.list_instances(
            "default", "double", ListQuery(newest_first=False, per_page=2)
        )
        await move.to_v2()
        for front in (runtime.control_plane, other):  # they do not know that it has moved
            assert await ids(front, "double", newest_first=False, per_page=2) == names
            info = await front.get_workflow("default", "double")
            assert (info.counts["queued"], info.counts["complete"]) == (3, 6)
        with pytest.raises(InstanceAlreadyExists):  # AccountOld is asked before
            await client.create_instance("double", unborn[0], 4)
        with pytest.raises(InstanceNotFound):
            await client.instance("double", "nobody").status()
        assert (await client.instance("double", unborn[0]).wait(30)).output == 8
        assert (await client.instance("double", unborn[1]).wait(30)).output == 8  # by being asked
        rest = ListQuery(newest_first=False, per_page=20, cursor=first.cursor)
        page = await other.list_instances("default", "double", rest)
        assert [row.id for row in page.page.rows] == names[2:]
        assert runtime.control_plane.planes.of("default").healing
        await move.heal()
        assert (await client_of(other).instance("double", unborn[2]).wait(30)).output == 8
        for front in (runtime.control_plane, other):
            while front.planes.of("default") != ON_V2:  # until the next snapshot
                await front.get_workflow("default", "double")
            assert await ids(front, "double", newest_first=False) == names


@pytest.mark.parametrize("statuses", [[], ["queued"], ["waiting"]], ids=["all", "queued", "others"])
async def test_all_are_terminated_also_who_has_no_engine(
    tmp_path: Path, statuses: list[str]
) -> None:
    """On V1 it does not reach them; while the account heals it does."""
    names = [f"n{n}" for n in range(1, 10)]
    async with on_v1(tmp_path, v1=FAULTY, running_max=0) as runtime:
        client, front, move = runtime.client(), runtime.control_plane, Move(runtime.router)
        for name in names:
            await client.create_instance("double", name, 4)
        other = await client.create_instance("ask", "a")
        uuid = (await front.get_workflow("default", "double")).record.uuid

        async def clear() -> dict[str, int]:
            assert await front.terminate_all("default", "double", statuses)
            while await front.is_clearing("default", uuid):
                await asyncio.sleep(0)
            counts = (await front.get_workflow("default", "double")).counts
            return {status: count for status, count in counts.items() if count}

        while (await move.old("status"))[3] > len(names) // LOST_BIRTHS:  # without an Engine
            await asyncio.sleep(0)
        frozen = await move.freeze()
        clearing = asyncio.create_task(clear())  # between the planes it waits
        await move.adopt(frozen)
        await move.route()
        if statuses == ["waiting"]:
            assert await clearing == {"queued": 9}
            assert (await move.old("status"))[3] == len(names) // LOST_BIRTHS, "nobody was born"
        else:
            assert await clearing == {"terminated": 9}
            assert await ids(front, "double", newest_first=False) == names
        assert (await other.status()).status == "queued"
        await move.heal()


class JustBorn:
    """A router: an instance that an Engine does not have yet is born before that is heard."""

    def __init__(self, runtime: Runtime, move: Move) -> None:
        self._call = runtime.router.call
        self._move = move

    def call(self, ref: EntityRef, *args: Any, **options: Any) -> Any:
        """As of the router."""
        if ref.kind != "Engine":
            return self._call(ref, *args, **options)
        return asyncio.ensure_future(self._late(ref, *args, **options))

    async def _late(self, ref: EntityRef, *args: Any, **options: Any) -> Any:
        try:
            return await self._call(ref, *args, **options)
        except InstanceNotFound:
            await self._move.heal()
            raise


async def test_what_is_born_while_it_is_looked_for_is_found(
    tmp_path: Path,
) -> None:
    async with on_v1(tmp_path, v1=FAULTY) as runtime:
        move = Move(runtime.router)
        for number in range(LOST_BIRTHS):
            await runtime.client().create_instance("double", f"n{number}", 4)
        await move.to_v2()
        router = JustBorn(runtime, move)
        front = ControlPlane(router, runtime.placement, SystemClock(), SystemEntropy())
        try:
            found = await front.get_instance("default", "double", f"n{LOST_BIRTHS - 1}")
        finally:
            await front.close()
        assert found.id == f"n{LOST_BIRTHS - 1}"


async def test_an_aborted_move_leaves_v1_as_it_was(tmp_path: Path) -> None:
    async with on_v1(tmp_path) as runtime, another_front_end(runtime) as other:
        client, move = runtime.client(), Move(runtime.router)
        asking = await client.create_instance("ask", "a")
        await move.to_v2()
        assert (await client_of(other).instance("ask", "a").status()).id == "a"
        assert await ids(other, "ask") == ["a"]
        assert other.planes.of("default").plane == "v2"
        await move.abort()
        assert await ids(other, "ask") == ["a"]
        await client_of(other).create_instance("ask", "b")
        assert other.planes.of("default") == ON_V1
        await asking.send_event("answer", 1)
        assert (await asking.wait(30)).output == 1
        assert (await move.old("status"))[0] == "v1"


async def test_a_server_that_is_started_again_takes_no_way_back(tmp_path: Path) -> None:
    """It deploys what the account has, with the limit that it has: that changes nothing."""
    app = tmp_path / "app.py"
    app.write_text(
        "from toque import workflow\n\n\n@workflow\nasync def one(event, step):\n    return 1\n"
    )

    @asynccontextmanager
    async def served(running_max: int) -> AsyncIterator[Runtime]:
        more = {"app_path": app, "running_max": running_max, "control_plane": "v1"}
        async with start_embedded(tmp_path / "data", **more) as runtime:
            yield runtime

    async with served(9) as runtime:
        await runtime.client().create_instance("one", "a")
        await Move(runtime.router).to_v2()
    async with served(9) as runtime:
        await Move(runtime.router).abort()
        await Move(runtime.router, migration_id="000000002").to_v2()
    async with served(8) as runtime:
        with pytest.raises(AbortRefused, match="creates or changes"):
            await Move(runtime.router, migration_id="000000002").abort()


async def test_what_v2_has_changed_is_not_taken_back(tmp_path: Path) -> None:
    async with on_v1(tmp_path, v1=FAULTY) as runtime, another_front_end(runtime) as other:
        client, move = runtime.client(), Move(runtime.router)
        for n in range(LOST_BIRTHS):
            await client.create_instance("double", f"n{n}", n)
        while (await move.old("status"))[3] > 1:  # without an Engine
            await asyncio.sleep(0)
        frozen = await move.freeze()
        await move.adopt(frozen)
        change = asyncio.create_task(other.deploys.delete("default", "double"))
        while not other.planes.reroutes:  # the Account has it, V2 does not serve yet
            await asyncio.sleep(0)
        await move.route()
        assert (await change).name == "double"
        with pytest.raises(AbortRefused):
            await move.old("abort", ID)
        with pytest.raises(WorkflowNotFound):
            await client_of(other).create_instance("double", "n9")
        while (await move.old("status"))[3]:  # who has none gets none
            await asyncio.sleep(0)
        await move.heal()
        changed = await other.limits.of_account("default", LimitsChange(running_max=9))
        assert changed.running_max == 9


async def test_no_request_fails_while_the_account_moves(tmp_path: Path) -> None:
    """Creates, reads, lists, events, pauses: all the while, over two front ends."""
    async with on_v1(tmp_path) as runtime, another_front_end(runtime) as other:
        move, over = Move(runtime.router), asyncio.Event()
        fronts = [runtime.control_plane, other]
        done: Counter[str] = Counter()

        async def life(number: int) -> None:
            """An instance from its create to its end, each call by another front end."""
            name = f"n{number}"
            first, second = (client_of(fronts[(number + n) % 2]) for n in (0, 1))
            await first.create_instance("ask", name)
            await second.instance("ask", name).pause()
            assert name in await ids(fronts[number % 2], "ask", prefix=name)
            await first.instance("ask", name).resume()
            await second.instance("ask", name).send_event("answer", number)
            assert (await first.instance("ask", name).wait(30)).output == number
            done[(await fronts[0].get_instance("default", "ask", name)).status] += 1

        async def lives(start: int) -> None:
            number = start
            while not over.is_set():
                await life(number)
                number += 4

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for start in range(4):
                group.create_task(lives(start))
            while sum(done.values()) < 8:
                await asyncio.sleep(0)
            before = sum(done.values())
            frozen = await move.freeze()
            while not any(front.planes.reroutes for front in fronts):
                await asyncio.sleep(0)
            await move.adopt(frozen)
            await move.route()
            await move.heal()
            while sum(done.values()) < before + 12:
                await asyncio.sleep(0)
            over.set()
        listed = await ids(other, "ask", per_page=7)
        assert (set(done), len(listed)) == ({"complete"}, sum(done.values()))
        assert len(set(listed)) == len(listed)
        for front in fronts:
            assert front.planes.reroutes > 0
            assert front.planes.of("default").plane == "v2"


async def test_who_waits_and_watches_does_so_over_the_move(tmp_path: Path) -> None:
    async with on_v1(tmp_path) as runtime:
        client, move = runtime.client(), Move(runtime.router)
        asking = await client.create_instance("ask", "a")
        seen: list[str] = []
        is_watched = asyncio.Event()

        async def watch() -> None:
            async for event in asking.events():
                seen.append(event.type)
                is_watched.set()

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            waiting = group.create_task(asking.wait(30))
            group.create_task(watch())
            await is_watched.wait()
            await move.to_v2()
            await move.heal()
            await asking.send_event("answer", 7)
        assert (waiting.result().output, seen[-1]) == (7, "workflow_completed")


# --- making accounts ------------------------------------------------------------------------


async def test_only_a_new_account_is_made_on_v1(tmp_path: Path) -> None:
    async with embedded(tmp_path / "data", FLOWS) as runtime:
        accounts = runtime.control_plane.accounts
        made = await accounts.create_account("old", plane="v1", request_id="r")
        assert await accounts.create_account("old", plane="v1", request_id="r") == made
        assert [await accounts.plane_of(each) for each in await accounts.list_accounts()] == [
            "v2",
            "v1",
        ]
        for name in ("default", "old"):
            with pytest.raises(AccountAlreadyExists):
                await accounts.create_account(name, plane="v1")
        with pytest.raises(RequestIdReused):
            await accounts.create_account("old", plane="v2", request_id="r")
        await runtime.control_plane.limits.of_account("used", LimitsChange(running_max=3))
        with pytest.raises(AccountAlreadyExists, match="workflows on control plane v2"):
            await accounts.create_account("used", plane="v1")
        with pytest.raises(AccountNotFound):
            await accounts.get_account("used")
        with pytest.raises(AccountAlreadyExists, match="made on control plane v2"):
            await accounts.ensure_account("default", "v1")


async def test_a_directory_that_was_begun_on_v1_stays_where_it_is(tmp_path: Path) -> None:
    async with on_v1(tmp_path) as runtime:
        assert runtime.control_plane.planes.of("default") == ON_V1
        assert (await runtime.client().run_instance("double", "a", 1, timeout=30)).output == 2
    for control_plane in (None, "v1"):
        async with on_v1(tmp_path, control_plane=control_plane) as runtime:
            assert (await runtime.client().instance("double", "a").status()).output == 2
            move = Move(runtime.router)
            assert (await move.old("status"))[0] == "v1"
    with pytest.raises(AccountAlreadyExists, match="made on control plane v1"):
        async with on_v1(tmp_path, control_plane="v2"):
            pass
    with pytest.raises(InvalidArgument, match="'v1'"):
        async with on_v1(tmp_path, control_plane="v3"):
            pass
    async with on_v1(tmp_path) as runtime:
        move = Move(runtime.router)
        await move.to_v2()
        await move.heal()
    async with on_v1(tmp_path) as runtime:  # the flag may stay
        assert (await runtime.client().run_instance("double", "b", 2, timeout=30)).output == 4
        account = await runtime.control_plane.accounts.get_account("default")
        assert await runtime.control_plane.accounts.plane_of(account) == "v2"
