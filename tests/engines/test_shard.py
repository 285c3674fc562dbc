"""EngineShard, the reporter and the code host: many at once, stale senders, lists, threads."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.rig import Rig, on_virtual_time, rigged
from toque.engines.code_host import InProcessCodeHost
from toque.engines.engine import Engine
from toque.engines.journal import INSTANCES, Instance
from toque.engines.ports import Grant, StatusReport
from toque.engines.reporter import Reporter
from toque.engines.status import FINISHED, HOLDS_SLOT, SLOT_STATES, STATUSES, TRANSITIONS, move
from toque.engines.step import WorkflowStep
from toque.engines.views import IndexRow, PageRequest
from toque.engines.workflow import WorkflowEvent, workflow
from toque.runtime import limits
from toque.runtime.errors import (
    InvalidArgument,
    InvalidTransition,
    Overloaded,
    ToqueError,
    WorkflowLoadError,
)

virtual = pytest.mark.loop(factory=on_virtual_time)


# --- statuses -----------------------------------------------------------------------------------


def test_the_table_is_the_only_way_from_status_to_status() -> None:
    events = {event for _, event in TRANSITIONS}
    for status in STATUSES:
        for event in events:
            if (status, event) in TRANSITIONS:
                assert move(status, event) == TRANSITIONS[status, event]  # type: ignore[arg-type]
            else:
                with pytest.raises(InvalidTransition, match=status):
                    move(status, event)  # type: ignore[arg-type]


def test_only_a_restart_leaves_what_is_finished() -> None:
    left = {event for (status, event) in TRANSITIONS if status in FINISHED}
    assert left == {"restart"}
    assert SLOT_STATES.keys() == STATUSES
    assert {s for s in STATUSES if SLOT_STATES[s] == "running"} == HOLDS_SLOT  # type: ignore[index]
    assert {s for s in STATUSES if SLOT_STATES[s] == "ended"} == FINISHED  # type: ignore[index]


# --- many at once -------------------------------------------------------------------------------


@workflow(name="quick")
async def quick(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
    """One step."""
    return await step.do("a", lambda: event.payload)


async def create_many(rig: Rig, count: int, uuid: str = "u1") -> None:
    """Create instances `n000`, `n001`, ..."""
    calls = [
        rig.create_call(quick, n, key=f"acc/{uuid}/n{n:03}", request_id=f"r{n}")
        for n in range(count)
    ]
    await asyncio.gather(*calls)


@virtual
async def test_many_grants_leave_each_turn_of_the_loop_to_others_too(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        count = 5 * limits.PACED_PER_TURN_MAX
        await create_many(rig, count)
        await rig.pass_time(0.1)
        grants = [Grant(r.key, r.run_id, r.turn) for r in rig.reports]
        grants.append(Grant("acc/u1/nobody", "x", 1))
        first = rig.call("grant_many", "s", 1, grants, kind="EngineShard")
        again = rig.call("grant_many", "s", 1, grants[:10], kind="EngineShard")
        before, most = 0, 0
        for _ in range(20):
            await asyncio.sleep(0)
            now = sum(one is not None and one.status != "queued" for one in live(rig))
            most, before = max(most, now - before), now
        assert 0 < most <= limits.PACED_PER_TURN_MAX
        assert before == count
        assert await first == [True] * count + [False]
        assert await again == [True] * 10
        await rig.pass_time(1)
        counts = await rig.call("counts", "acc", "u1", kind="EngineShard")
        assert counts == {"complete": count}


@virtual
async def test_many_pokes_leave_each_turn_of_the_loop_to_others_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poke, poked = Engine.poke, []

    def noted(engine: Engine, souschef: str) -> bool:
        poked.append(engine.ctx.ref.key)
        return poke(engine, souschef)

    monkeypatch.setattr(Engine, "poke", noted)
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await create_many(rig, 5 * limits.PACED_PER_TURN_MAX)
        await rig.pass_time(0.1)
        keys = [report.key for report in rig.reports]
        rig.reports.clear()
        answer = rig.call("poke_many", "s", 1, [*keys, "acc/u1/nobody"], kind="EngineShard")
        before, most = 0, 0
        for _ in range(20):
            await asyncio.sleep(0)
            most, before = max(most, len(poked) - before), len(poked)
        assert 0 < most <= limits.PACED_PER_TURN_MAX
        assert await answer == ["acc/u1/nobody"]
        await rig.pass_time(0.1)
        assert sorted(report.key for report in rig.reports) == sorted(keys)


@virtual
async def test_grants_that_break_off_are_told_as_failed_and_can_be_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        count = 2 * limits.PACED_PER_TURN_MAX
        await create_many(rig, count)
        await rig.pass_time(0.1)
        grants = [Grant(r.key, r.run_id, r.turn) for r in rig.reports]
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "grant", _raises)
            with pytest.raises(ToqueError):
                await rig.call("grant_many", "s", 1, grants, kind="EngineShard")
        assert await rig.call("grant_many", "s", 1, grants, kind="EngineShard") == [True] * count


def _raises(self: Engine, run_id: str, turn: int) -> bool:
    raise Overloaded("the batch is full")


def live(rig: Rig) -> list[Instance | None]:
    """The instances in memory."""
    return [engine._instance for engine in rig.host.live("Engine") if isinstance(engine, Engine)]


@virtual
async def test_a_batch_of_grants_is_one_commit(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await create_many(rig, 50)
        await rig.pass_time(0.1)
        before = rig.commits
        grants = [Grant(r.key, r.run_id, r.turn) for r in rig.reports]
        grants.append(Grant("acc/u1/nobody", "x", 1))
        taken = await rig.call("grant_many", "s", 1, grants, kind="EngineShard")
        assert taken == [True] * 50 + [False]
        assert rig.commits == before + 1
        await rig.pass_time(1)
        counts = await rig.call("counts", "acc", "u1", kind="EngineShard")
        assert counts == {"complete": 50}


@virtual
async def test_an_older_incarnation_of_a_souschef_is_refused(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(quick)
        report = rig.reports[0]
        grants = [Grant(report.key, report.run_id, report.turn)]
        await rig.call("poke_many", "s", 5, [], kind="EngineShard")
        assert await rig.call("grant_many", "s", 4, grants, kind="EngineShard") == [False]
        rig.restart()
        assert await rig.call("grant_many", "s", 4, grants, kind="EngineShard") == [False]
        assert await rig.call("poke_many", "s", 4, ["x"], kind="EngineShard") == []
        assert await rig.call("grant_many", "t", 4, grants, kind="EngineShard") == [True]


async def page(rig: Rig, **fields: Any) -> list[IndexRow]:
    """A page of a list."""
    request: dict[str, Any] = {
        "account": "acc",
        "workflow_uuid": "u1",
        "after": None,
        "newest_first": False,
        "limit": 7,
        "statuses": [],
        "since_ms": None,
        "until_ms": None,
    }
    call = rig.call("list_page", PageRequest(**{**request, **fields}), kind="EngineShard")
    return msgspec.convert(await call, list[IndexRow])


@virtual
@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_show_each_instance_once(tmp_path: Path, newest_first: bool) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await create_many(rig, 20)
        await rig.pass_time(1)
        await create_many(rig, 5, "u2")
        seen: list[str] = []
        after = None
        while rows := await page(rig, after=after, newest_first=newest_first):
            seen += [row.id for row in rows]
            after = rows[-1].created_ms, rows[-1].id
        assert seen == sorted((f"n{n:03}" for n in range(20)), reverse=newest_first)


@virtual
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_prefix_lists_its_ids_in_their_order(tmp_path: Path, newest_first: bool) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await create_many(rig, 20)
        await create_many(rig, 20, "u2")
        await rig.pass_time(1)
        seen: list[str] = []
        after = None
        while rows := await page(rig, after=after, prefix="n01", newest_first=newest_first):
            seen += [row.id for row in rows]
            after = rows[-1].created_ms, rows[-1].id
        assert seen == sorted((f"n01{n}" for n in range(10)), reverse=newest_first)
        counts = await rig.call("counts_at_least", "acc", "u1", "n01", kind="EngineShard")
        assert counts == {"queued": 10}
        assert await page(rig, prefix="n02") == []


@virtual
async def test_pages_filter(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await create_many(rig, 4)
        await rig.pass_time(1)
        for report in rig.reports[:2]:
            rig.grant(report)
        await rig.pass_time(1)
        assert [r.id for r in await page(rig, statuses=["complete"])] == ["n000", "n001"]
        assert [r.id for r in await page(rig, statuses=["queued", "odd"])] == ["n002", "n003"]
        assert await page(rig, statuses=["odd"]) == []
        created_ms = (await page(rig))[0].created_ms
        assert len(await page(rig, since_ms=created_ms, until_ms=created_ms + 1)) == 4
        assert await page(rig, until_ms=created_ms) == []
        assert await page(rig, since_ms=created_ms + 1) == []
        assert await page(rig, account="other") == []
        assert await rig.call("counts", "other", "u1", kind="EngineShard") == {}
        for limit in (0, limits.LIST_PAGE_ROWS_MAX + 1):
            with pytest.raises(InvalidArgument):
                await page(rig, limit=limit)


# --- counts ---


def put_many(rig: Rig, status: str, count: int, first: int = 0) -> None:
    """Write rows of instances that nobody created, straight to the store."""
    for n in range(first, first + count):
        one = Instance(1, "r", "quick", "", "", "", "", "api", 0, n, status, n, n)
        rig.host.store.put("test", INSTANCES, one.row(f"acc/u1/{status}{n}", "u1"))


@virtual
async def test_of_many_instances_all_are_counted(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        many = {"queued": 4_000, "running": 30, "rollingBack": 2, "waitingForPause": 3}
        many |= {"waiting": 5_000, "paused": 1, "complete": 5_000, "errored": 7, "terminated": 9}
        for status, count in many.items():
            put_many(rig, status, count)
            await rig.host.store.flush()
        assert sum(many.values()) > limits.COUNT_ROWS_MAX

        async def counted() -> dict[str, int]:
            found: dict[str, int] = await rig.call("counts", "acc", "u1", kind="EngineShard")
            return found

        assert await counted() == many
        assert await rig.call("counts", "other", "u1", kind="EngineShard") == {}
        put_many(rig, "errored", 4, first=100)
        await rig.host.store.flush()
        assert await counted() == many, "told for a while without another look"
        await rig.pass_time(sum(many.values()) / limits.COUNTED_PER_MS / 1_000)
        assert await counted() == many | {"errored": 11}


@virtual
async def test_a_count_of_few_is_never_old(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        for n in range(3):
            await rig.create(quick, n, key=f"acc/u1/n{n}", request_id=f"r{n}")
            counts = await rig.call("counts", "acc", "u1", kind="EngineShard")
            assert counts == {"queued": n + 1}


# --- the reporter -------------------------------------------------------------------------------


def report(key: str, seq: int = 1) -> StatusReport:
    """A report."""
    return StatusReport(key, "run", seq, "queued", 1, False, 0, 0, "queued", "d0")


class Sink:
    """Takes reports, and answers when told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[StatusReport], asyncio.Future[Any]]] = []

    def call(self, ref: Any, method: str, reports: list[StatusReport]) -> asyncio.Future[Any]:
        """`router.call`."""
        future = asyncio.get_running_loop().create_future()
        self.calls.append((ref.key, reports, future))
        return future


class Confirmed:
    """Stands for a live Engine."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def report_confirmed(self, run_id: str, seq: int) -> bool:
        """See `reporter.Confirmable`."""
        self.told.append(("confirmed", seq))
        return True

    def settle(self, run_id: str, seq: int) -> None:
        """See `reporter.Confirmable`."""
        self.told.append(("settle", seq))


async def turns(count: int = 3) -> None:
    """Turns of the loop pass."""
    for _ in range(count):
        await asyncio.sleep(0)


@virtual
async def test_reports_of_one_turn_travel_together_and_newest_wins() -> None:
    sink, engine = Sink(), Confirmed()
    reporter = Reporter(asyncio.get_running_loop(), sink.call, lambda ref: engine)
    reporter.add("s1", report("a"))
    reporter.add("s1", report("a", 3))
    reporter.add("s1", report("a", 2))
    reporter.add("s1", report("b"))
    reporter.add("s0", report("c"))
    await turns()
    assert [(s, [(r.key, r.seq) for r in batch]) for s, batch, _ in sink.calls] == [
        ("s0", [("c", 1)]),
        ("s1", [("a", 3), ("b", 1)]),
    ]
    sink.calls[0][2].set_result(None)
    await turns()
    assert engine.told == [("confirmed", 1)]
    await asyncio.sleep(1.1)  # simloop
    assert engine.told == [("confirmed", 1), ("settle", 1)]
    reporter.close()


@virtual
async def test_a_lost_report_is_repeated_unless_a_newer_one_is_there() -> None:
    sink = Sink()
    reporter = Reporter(asyncio.get_running_loop(), sink.call, lambda ref: None)
    reporter.add("s", report("a"))
    reporter.add("s", report("b"))
    await turns()
    reporter.add("s", report("a", 2))
    sink.calls[0][2].set_exception(ConnectionError())
    await turns()
    assert [r.seq for r in sink.calls[1][1]] == [2]
    sink.calls[1][2].set_result(None)
    await asyncio.sleep(2.1)  # simloop
    assert [(r.key, r.seq) for r in sink.calls[2][1]] == [("a", 1), ("b", 1)]
    sink.calls[2][2].set_result(None)
    await turns()
    assert reporter.statistics() == {"pending": 0, "lanes": 0}
    reporter.close()


@virtual
async def test_messages_are_bounded_in_size_and_number() -> None:
    sink = Sink()
    reporter = Reporter(asyncio.get_running_loop(), sink.call, lambda ref: None)
    for n in range(3_000):
        reporter.add("s", report(f"k{n}"))
    await turns()
    assert [len(batch) for _, batch, _ in sink.calls] == [limits.REPORTS_PER_MESSAGE_MAX] * 4
    sink.calls[0][2].set_result(None)
    await turns()
    assert len(sink.calls) == 5
    assert reporter.statistics()["pending"] == 500
    reporter.close()
    for _, _, future in sink.calls:
        if not future.done():
            future.set_exception(ConnectionError())
    await turns()
    assert len(sink.calls) == 5


@virtual
async def test_an_end_waits_for_company_where_nobody_waits_for_its_slot() -> None:
    sink = Sink()
    reporter = Reporter(asyncio.get_running_loop(), sink.call, lambda ref: None)

    def end(key: str) -> StatusReport:
        return msgspec.structs.replace(report(key, 3), state="ended")

    reporter.add("s", end("a"))  # nothing is known of its SousChef yet
    await turns()
    assert len(sink.calls) == 1
    sink.calls[0][2].set_result(True)
    await turns()
    reporter.add("s", end("b"))
    reporter.add("other", end("x"))
    await turns()
    assert [[r.key for r in batch] for _, batch, _ in sink.calls[1:]] == [["x"]]
    reporter.add("s", report("c"))
    await turns()
    assert [[r.key for r in batch] for _, batch, _ in sink.calls[2:]] == [["b", "c"]]
    reporter.add("s", end("d"))
    await asyncio.sleep(limits.REPORT_GATHER_MS / 1_000 + 0.001)  # simloop
    await turns()
    assert [r.key for r in sink.calls[3][1]] == ["d"]
    sink.calls[2][2].set_result(False)  # somebody waits for a slot now
    await turns()
    reporter.add("s", end("e"))
    await turns()
    assert [r.key for r in sink.calls[4][1]] == ["e"]
    reporter.close()


# --- the code host ------------------------------------------------------------------------------


async def outcome(host: InProcessCodeHost, fn: Any, is_async: bool, cancel: bool = False) -> Any:
    """What comes of a body, and the thread it ran in."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    body = host.run_body(
        fn, {}, is_async, copy_context(), lambda error, value: done.set_result((error, value))
    )
    assert not done.done()
    if cancel:
        body.cancel()
    return await done


async def test_bodies_run_on_the_loop_or_in_threads() -> None:
    host = InProcessCodeHost(asyncio.get_running_loop())

    async def coroutine() -> str:
        return threading.current_thread().name

    def plain() -> str:
        return threading.current_thread().name

    here = threading.current_thread().name
    assert await outcome(host, coroutine, True) == (None, here)
    assert (await outcome(host, plain, False))[1].startswith("toque-step")
    assert await outcome(host, lambda: coroutine(), False) == (None, here)
    inline = InProcessCodeHost(asyncio.get_running_loop(), inline=True)
    assert await outcome(inline, plain, False) == (None, here)
    assert await outcome(inline, lambda: coroutine(), False) == (None, here)
    host.close()


@pytest.mark.parametrize("kind", ["async", "plain", "returns a coroutine"])
async def test_whatever_a_body_raises_is_an_outcome(kind: str) -> None:
    host = InProcessCodeHost(asyncio.get_running_loop())

    async def coroutine() -> None:
        raise SystemExit(3)

    def plain() -> None:
        raise SystemExit(3)

    fn = {"async": coroutine, "plain": plain}.get(kind, lambda: coroutine())
    error, value = await outcome(host, fn, kind == "async")
    assert isinstance(error, SystemExit)
    assert value is None
    host.close()


async def test_a_cancelled_body_says_so() -> None:
    host = InProcessCodeHost(asyncio.get_running_loop(), threads=1)
    release = threading.Event()

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    def held() -> str:
        release.wait(30)
        return "in a thread"

    async def awaits() -> None:
        await forever()

    error, _ = await outcome(host, forever, True, cancel=True)
    assert isinstance(error, asyncio.CancelledError)
    running = asyncio.ensure_future(outcome(host, held, False, cancel=True))
    await turns()
    error, _ = await outcome(host, held, False, cancel=True)  # has not got a thread yet
    assert isinstance(error, asyncio.CancelledError)
    release.set()
    error, value = await running
    assert isinstance(error, asyncio.CancelledError) or value == "in a thread"
    error, _ = await outcome(host, awaits, False, cancel=True)
    assert isinstance(error, asyncio.CancelledError)
    host.close()


async def test_unknown_code_is_named() -> None:
    host = InProcessCodeHost(asyncio.get_running_loop())
    with pytest.raises(WorkflowLoadError, match="'nobody'"):
        host.definition("nobody")
