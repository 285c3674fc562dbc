"""Entities on a real host and store: gates, activation, alarms, outbox, crashes."""

from __future__ import annotations

import asyncio
import gc
import itertools
from typing import Any

import msgspec
import pytest

from tests.runtime.shards import COMMIT_S, Cluster
from toque.runtime import limits
from toque.runtime.entity import DurableObject
from toque.runtime.errors import (
    CallCycle,
    EntityReset,
    InvalidArgument,
    Overloaded,
    StoreFailed,
    ToqueError,
    UnknownMethod,
)
from toque.runtime.host import Followed, HostFaults
from toque.runtime.ids import EntityRef
from toque.runtime.memory import resident_bytes
from toque.runtime.outbox import OUTBOX
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.storage import KV
from toque.runtime.sweeper import Sweeper

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


class Pair(msgspec.Struct, array_like=True):
    left: int
    right: str


class Counter(DurableObject):
    """Counts, in the key-value storage."""

    made = 0
    evicted: list[str] = []

    def __init__(self, ctx: Any, env: Any) -> None:
        super().__init__(ctx, env)
        Counter.made += 1
        self.inside = 0

    def on_evict(self) -> None:
        Counter.evicted.append(self.ctx.ref.key)

    async def add(self, by: int) -> int:
        value = await self.ctx.storage.get("n", 0) + by
        await self.ctx.storage.put("n", value)
        return value

    async def value(self) -> int:
        return await self.ctx.storage.get("n", 0)

    async def add_and_raise(self) -> None:
        await self.add(1)
        raise InvalidArgument("after the write", {"wrote": 1})

    async def bug(self) -> None:
        raise RuntimeError("a bug")

    def typed(self, pair: Pair, times: int = 2) -> str:
        return pair.right * times

    async def slow_alone(self) -> int:
        async def work() -> int:
            self.inside += 1
            await asyncio.sleep(1)
            self.inside -= 1
            return self.inside

        return await self.ctx.block_concurrency_while(work)

    async def slow_failing(self) -> None:
        async def work() -> None:
            await asyncio.sleep(0.1)
            raise RuntimeError("start-up failed")

        await self.ctx.block_concurrency_while(work)

    async def add_slowly(self, by: int) -> None:
        await asyncio.sleep(1.5 * limits.CALL_TIMEOUT_MS / 1_000)
        await self.add(by)

    def pass_on_slowly(self, key: str) -> None:
        self.ctx.tell(EntityRef("Counter", key), "add_slowly", 1)

    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    async def via(self, keys: list[str]) -> Any:
        if not keys:
            return await self.ctx.storage.get("n", 0)
        return await self.ctx.stub("Counter", keys[0]).via(keys[1:])

    def pass_on(self, key: str, by: int) -> None:
        self.ctx.tell(EntityRef("Counter", key), "add", by)

    def pass_on_badly(self, key: str) -> None:
        self.ctx.tell(EntityRef("Counter", key), "add", "no number")
        self.ctx.tell(EntityRef("Counter", key), "add", 1)

    def spoil(self, key: str = "") -> None:
        """Write what no column takes, and perhaps tell somebody."""
        if key:
            self.ctx.tell(EntityRef("Counter", key), "add", 100)
        self.ctx.put(KV, (*self.ctx.ref, "bad", 1 << 70))

    def in_background(self, key: str) -> None:
        async def work() -> None:
            await asyncio.sleep(1)
            await self.ctx.storage.put("n", 99)

        self.ctx.wait_until(work())

    def leave(self) -> None:
        self.ctx.evict()


class Timer(DurableObject):
    """Counts alarms; fails the first `fails`."""

    fired: list[tuple[int, int]] = []

    async def set_in(self, in_ms: int, fails: int) -> None:
        await self.ctx.storage.put("fails", fails)
        self.ctx.set_alarm(self.ctx.clock.now_ms() + in_ms)

    async def alarm(self, info: Any) -> None:
        Timer.fired.append((self.ctx.clock.now_ms(), info.retry_count))
        if await self.ctx.storage.get("fails", 0) > info.retry_count:
            raise RuntimeError("not yet")
        await self.ctx.storage.put("done", True)

    async def done(self) -> bool:
        return await self.ctx.storage.get("done", False)

    async def due(self) -> int | None:
        return self.ctx.alarm_due_ms()

    def clear(self) -> None:
        self.ctx.delete_alarm()


CLASSES = {"Counter": Counter, "Timer": Timer}


@pytest.fixture(autouse=True)
def fresh_classes() -> None:
    Counter.made, Counter.evicted, Timer.fired = 0, [], []


def ref(key: str, kind: str = "Counter") -> EntityRef:
    return EntityRef(kind, key)


async def test_state_survives_a_crash_once_acknowledged(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    assert await cluster.router.call(ref("a"), "add", 2) == 2
    assert await cluster.router.call(ref("a"), "add", 3) == 5
    cluster.crash("d0")
    cluster.open("d0")
    assert await cluster.router.call(ref("a"), "value") == 5
    assert Counter.made == 2
    await cluster.close()


async def test_an_answer_waits_for_the_commit_and_is_lost_with_it(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    future = cluster.router.call(ref("a"), "add", 1)
    await asyncio.sleep(COMMIT_S / 2)
    assert not future.done()
    cluster.crash("d0", "lost")
    with pytest.raises(ToqueError):
        await future
    cluster.open("d0")
    assert await cluster.router.call(ref("a"), "value") == 0
    await cluster.close()


async def test_a_read_waits_for_the_write_that_it_reveals(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    write = cluster.router.call(ref("a"), "add", 1)
    read = cluster.router.call(ref("a"), "value")
    await asyncio.sleep(COMMIT_S / 2)
    assert not read.done()
    assert await asyncio.gather(write, read) == [1, 1]
    await cluster.close()


async def test_without_the_output_gate_an_answer_runs_ahead_of_its_commit(tmp_path):
    cluster = Cluster(tmp_path, CLASSES, faults=HostFaults(no_output_gate=True))
    assert await cluster.router.call(ref("a"), "add", 1) == 1
    cluster.crash("d0", "lost")
    cluster.open("d0")
    assert await cluster.router.call(ref("a"), "value") == 0  # acknowledged, and gone
    await cluster.close()


async def test_an_error_of_the_handler_keeps_class_data_and_earlier_writes(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    with pytest.raises(InvalidArgument, match="after the write") as caught:
        await cluster.router.call(ref("a"), "add_and_raise")
    assert caught.value.data == {"wrote": 1}
    assert await cluster.router.call(ref("a"), "value") == 1
    with pytest.raises(ToqueError, match="RuntimeError: a bug"):
        await cluster.router.call(ref("a"), "bug")
    await cluster.close()


@pytest.mark.parametrize(
    ("method", "args", "error"),
    [
        ("nothing", (), UnknownMethod),
        ("_private", (), UnknownMethod),
        ("alarm", ((0,),), UnknownMethod),
        ("add", (), InvalidArgument),
        ("add", ("1",), InvalidArgument),
        ("add", (1, 2), InvalidArgument),
        ("typed", ([1],), InvalidArgument),
        ("typed", ([1, "x"], 1, 1), InvalidArgument),
    ],
)
async def test_a_call_that_fits_no_handler_is_refused(tmp_path, method, args, error):
    cluster = Cluster(tmp_path, CLASSES)
    with pytest.raises(error):
        await cluster.router.call(ref("a"), method, *args)
    assert await cluster.router.call(ref("a"), "value") == 0
    await cluster.close()


async def test_arguments_arrive_as_annotated_and_defaults_apply(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    assert await cluster.router.call(ref("a"), "typed", Pair(1, "x")) == "xx"
    assert await cluster.router.call(ref("a"), "typed", Pair(1, "x"), 3) == "xxx"
    await cluster.close()


async def test_an_unknown_kind_and_a_bad_key_are_refused(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    for bad in (ref("a", "Nobody"), ref(""), ref("x" * (limits.ENTITY_KEY_CHARS_MAX + 1))):
        with pytest.raises(InvalidArgument):
            await cluster.router.call(bad, "value")
    await cluster.close()


async def test_a_critical_section_lets_nothing_in(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    first = cluster.router.call(ref("a"), "slow_alone")
    second = cluster.router.call(ref("a"), "slow_alone")
    start = cluster.loop.time()
    assert await asyncio.gather(first, second) == [0, 0]
    assert cluster.loop.time() - start >= 2
    await cluster.close()


async def test_without_a_critical_section_events_interleave(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    start = cluster.loop.time()
    await asyncio.gather(*(cluster.router.call(ref("a"), "nap", 1.0) for _ in range(10)))
    assert cluster.loop.time() - start < 1.5
    await cluster.close()


async def test_a_failing_critical_section_resets_the_entity(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    failing = cluster.router.call(ref("a"), "slow_failing")
    with pytest.raises(ToqueError):
        await failing
    assert await cluster.router.call(ref("a"), "add", 1) == 1
    assert Counter.made == 2
    await cluster.close()


async def test_a_full_mailbox_refuses_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAILBOX_CALLS_MAX", 3)
    cluster = Cluster(tmp_path, CLASSES)
    blocked = cluster.router.call(ref("a"), "slow_alone")
    calls = [cluster.router.call(ref("a"), "add", 1) for _ in range(5)]
    results = await asyncio.gather(blocked, *calls, return_exceptions=True)
    assert results[:4] == [0, 1, 2, 3]
    assert [type(error) for error in results[4:]] == [Overloaded, Overloaded]
    await cluster.close()


async def test_a_shard_that_is_behind_with_its_commits_refuses_new_calls(tmp_path, monkeypatch):
    cluster = Cluster(tmp_path, CLASSES)
    await cluster.router.call(ref("a"), "value")
    monkeypatch.setattr(limits, "BATCH_ROWS_RESERVED", limits.BATCH_ROWS_MAX - 2)
    calls = [cluster.router.call(ref(f"k{n}"), "pass_on", "to", 1) for n in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[:2] == [None, None]
    assert {type(error) for error in results[3:]} == {Overloaded}
    await asyncio.sleep(5)
    taken = results.count(None)
    assert await cluster.router.call(ref("to"), "value") == taken  # refused: nothing was done
    await cluster.close()


async def test_a_cycle_of_calls_is_refused_and_names_the_way(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    assert await cluster.router.call(ref("a"), "via", ["b", "c"]) == 0
    with pytest.raises(CallCycle, match=r"Counter\(a\) -> Counter\(b\)"):
        await cluster.router.call(ref("a"), "via", ["b", "a"])
    with pytest.raises(CallCycle):
        await cluster.router.call(ref("a"), "via", ["a"])
    await cluster.close()


async def test_an_idle_entity_is_evicted_and_a_busy_one_is_not(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    await cluster.router.call(ref("idle"), "add", 1)
    nap = cluster.router.call(
        ref("busy"), "nap", 3.0 * limits.IDLE_EVICTION_MS / 1000, timeout_ms=10_000_000
    )
    await asyncio.sleep(2 * limits.IDLE_EVICTION_MS / 1000)
    assert Counter.evicted == ["idle"]
    assert await nap == "rested"
    assert await cluster.router.call(ref("idle"), "value") == 1
    await cluster.close()


async def test_the_idle_leave_at_once_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ENTITIES_LIVE_MAX", 20)
    monkeypatch.setattr(limits, "SWEPT_PER_TURN_MAX", 3)
    cluster = Cluster(tmp_path, CLASSES)
    nap = cluster.router.call(ref("busy"), "nap", 30.0, timeout_ms=100_000)
    for number in range(20):
        await cluster.router.call(ref(f"e{number}"), "add", 1)
    await asyncio.sleep(2 * limits.PRESSURE_IDLE_MS / 1000)
    assert Counter.evicted == []
    await cluster.router.call(ref("one more"), "add", 1)
    await asyncio.sleep(0.1)
    assert Counter.evicted == [f"e{number}" for number in range(20)]
    assert cluster.hosts["d0"].statistics()["hibernated"] == 20
    assert await nap == "rested"
    assert await cluster.router.call(ref("e3"), "value") == 1
    await cluster.close()


async def test_the_idle_leave_at_once_when_memory_is_short(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    memory = [limits.SHARD_MEMORY_BYTES_MAX]
    host = cluster.hosts["d0"]
    host._sweeper.close()
    host._sweeper = Sweeper(cluster.loop, host._live, host.end, lambda: memory[0])
    host._sweeper.start()
    await cluster.router.call(ref("a"), "add", 1)
    await asyncio.sleep(5)
    assert Counter.evicted == []
    memory[0] += 1
    await asyncio.sleep(2)
    assert Counter.evicted == ["a"]
    assert await cluster.router.call(ref("a"), "value") == 1
    await cluster.close()


def test_this_process_has_some_memory():
    assert 1_000_000 < resident_bytes() < 1 << 45


async def test_an_entity_may_ask_to_leave(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    await cluster.router.call(ref("a"), "leave")
    await asyncio.sleep(0.1)
    assert Counter.evicted == ["a"]
    await cluster.close()


async def test_background_work_keeps_the_entity_and_its_writes(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    await cluster.router.call(ref("a"), "in_background", "x")
    await asyncio.sleep(2)
    assert await cluster.router.call(ref("a"), "value") == 99
    await cluster.close()


# --- alarms ---


async def test_an_alarm_fires_once_when_due(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    start = cluster.clock.now_ms()
    await cluster.router.call(ref("t", "Timer"), "set_in", 5_000, 0)
    assert await cluster.router.call(ref("t", "Timer"), "due") == start + 5_000
    await asyncio.sleep(60)
    assert [(at - start, retries) for at, retries in Timer.fired] == [(5_000, 0)]
    assert await cluster.router.call(ref("t", "Timer"), "due") is None
    await cluster.close()


@pytest.mark.parametrize("in_ms", [1_000, 10 * limits.ALARM_WINDOW_MS])
async def test_an_alarm_fires_though_the_shard_was_down_when_it_was_due(tmp_path, in_ms):
    cluster = Cluster(tmp_path, CLASSES)
    await cluster.router.call(ref("t", "Timer"), "set_in", in_ms, 0)
    cluster.crash("d0")
    await asyncio.sleep(2 * in_ms / 1000)
    cluster.open("d0")
    await asyncio.sleep(1)
    assert len(Timer.fired) == 1
    assert await cluster.router.call(ref("t", "Timer"), "done")
    await cluster.close()


async def test_a_failing_alarm_is_repeated_with_backoff_until_it_succeeds(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    await cluster.router.call(ref("t", "Timer"), "set_in", 0, 8)
    await asyncio.sleep(2 * 3600)
    assert [retries for _, retries in Timer.fired] == list(range(9))
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(Timer.fired)]
    assert all(later > earlier for earlier, later in itertools.pairwise(gaps[:6]))
    assert max(gaps) <= 1.25 * limits.ALARM_BACKOFF_MAX_MS
    assert await cluster.router.call(ref("t", "Timer"), "done")
    await cluster.close()


async def test_a_cleared_alarm_does_not_fire_and_a_replaced_one_fires_at_the_new_time(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    start = cluster.clock.now_ms()
    await cluster.router.call(ref("t", "Timer"), "set_in", 1_000, 0)
    await cluster.router.call(ref("t", "Timer"), "set_in", 9_000, 0)
    await cluster.router.call(ref("u", "Timer"), "set_in", 1_000, 0)
    await cluster.router.call(ref("u", "Timer"), "clear")
    await asyncio.sleep(60)
    assert len(Timer.fired) == 1
    assert Timer.fired[0][0] - start >= 9_000
    await cluster.close()


async def test_a_herd_of_overdue_alarms_all_fire(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    count = 3 * limits.ALARMS_PER_TURN_MAX
    await asyncio.gather(
        *(cluster.router.call(ref(f"t{n}", "Timer"), "set_in", 1_000, 0) for n in range(count))
    )
    cluster.crash("d0")
    await asyncio.sleep(10)
    cluster.open("d0")
    await asyncio.sleep(5)
    assert len(Timer.fired) == count
    await cluster.close()


class Worker(DurableObject):
    """Has work in memory whenever its shard is open."""

    resumed: list[str] = []

    def begin(self) -> None:
        self.ctx.put(KV, (*self.ctx.ref, "begun", b""))

    @classmethod
    def resume_keys(cls, store: Any) -> list[str]:
        return [row[1] for row in store.scan(KV, ("Worker",))]

    def on_resume(self) -> None:
        Worker.resumed.append(self.ctx.ref.key)


async def test_what_goes_on_after_a_restart_leaves_each_turn_to_others_too(tmp_path):
    """Else a shard with many that ran would hang, and be killed for it, at each start."""
    cluster = Cluster(tmp_path, {"Worker": Worker})
    count = 10 * limits.PACED_PER_TURN_MAX
    keys = [f"w{n:04}" for n in range(count)]
    await asyncio.gather(*(cluster.router.call(ref(key, "Worker"), "begin") for key in keys))
    cluster.crash("d0")
    Worker.resumed = []
    cluster.open("d0")
    before, most = 0, 0
    while len(Worker.resumed) < count:
        await asyncio.sleep(0)
        most = max(most, len(Worker.resumed) - before)
        before = len(Worker.resumed)
    assert 0 < most <= limits.PACED_PER_TURN_MAX
    assert Worker.resumed == keys
    await cluster.close()


# --- outbox ---


@pytest.mark.parametrize("data_shards", [1, 3])
async def test_a_told_message_takes_effect_once(tmp_path, data_shards):
    cluster = Cluster(tmp_path, CLASSES, data_shards=data_shards)
    for n in range(10):
        await cluster.router.call(ref("a"), "pass_on", f"b{n % 2}", 1)
    await asyncio.sleep(1)
    assert await cluster.router.call(ref("b0"), "value") == 5
    assert await cluster.router.call(ref("b1"), "value") == 5
    assert all(host.outbox.waiting == 0 for host in cluster.hosts.values())
    await cluster.close()


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("victim", ["d0", "d1", "d2"])
@pytest.mark.parametrize("after_ms", [0, 4, 6, 9, 11, 14, 19])
async def test_a_told_message_takes_effect_once_over_crashes(tmp_path, victim, after_ms, outcome):
    cluster = Cluster(tmp_path, CLASSES, data_shards=3)
    call = cluster.router.call(ref("a"), "pass_on", "b", 1)
    await asyncio.sleep(after_ms / 1000)
    cluster.crash(victim, outcome)
    acknowledged = (await asyncio.gather(call, return_exceptions=True)) == [None]
    await asyncio.sleep(0.1)
    cluster.open(victim)
    await asyncio.sleep(120)  # calls of living shards to the dead one run into their time-out
    value = await cluster.router.call(ref("b"), "value")
    assert value == 1 if acknowledged else value in (0, 1)
    assert all(host.outbox.waiting == 0 for host in cluster.hosts.values())
    await cluster.close()


async def test_a_message_refused_for_good_does_not_block_those_behind_it(tmp_path, caplog):
    cluster = Cluster(tmp_path, CLASSES)
    await cluster.router.call(ref("a"), "pass_on_badly", "b")
    await asyncio.sleep(1)
    assert await cluster.router.call(ref("b"), "value") == 1
    assert "refused" in caplog.text
    await cluster.close()


async def test_a_message_of_a_commit_that_could_not_be_stored_is_never_sent(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    calls = [cluster.router.call(ref("a"), "spoil", "b")]
    calls += [cluster.router.call(ref(sender), "pass_on", "b", 1) for sender in "cd"]
    spoilt, *fine = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(spoilt, StoreFailed)
    assert fine == [None, None]
    await cluster.router.call(ref("a"), "pass_on", "b", 10)
    await asyncio.sleep(1)
    assert await cluster.router.call(ref("b"), "value") == 12
    assert all(host.outbox.waiting == 0 for host in cluster.hosts.values())
    await cluster.close()


async def test_a_message_that_was_taken_goes_though_its_sender_writes_what_cannot_be_stored(
    tmp_path,
):
    cluster = Cluster(tmp_path, CLASSES)
    await cluster.router.call(ref("a"), "pass_on", "b", 1)
    calls = []
    for _ in range(50):  # so that each commit has a bad row of the sender's
        calls.append(cluster.router.call(ref("a"), "spoil"))
        await asyncio.sleep(0.001)
    await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(1)
    assert await cluster.router.call(ref("b"), "value") == 1
    assert not any(host.store.scan(OUTBOX) for host in cluster.hosts.values())
    await cluster.close()


@pytest.mark.filterwarnings("error")
async def test_a_message_is_noted_at_its_good_end_and_one_that_never_began_leaves_nothing() -> None:
    async def handle(told: str) -> None:
        await asyncio.sleep(0)
        if told == "bad":
            raise ValueError(told)

    loop, noted = asyncio.get_running_loop(), []

    def task(told: str) -> asyncio.Task[None]:
        return loop.create_task(Followed(handle(told), lambda: noted.append(told)))

    await task("good")
    assert noted == ["good"]
    with pytest.raises(ValueError, match="bad"):
        await task("bad")
    late = task("late")
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    del late
    gc.collect()  # a coroutine that was never awaited would be told of here
    assert noted == ["good"]


async def test_calls_that_wait_for_an_entity_that_is_reset_are_answered_at_once(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    start = cluster.loop.time()
    failing = cluster.router.call(ref("a"), "slow_failing")
    waiting = cluster.router.call(ref("a"), "add", 1)
    with pytest.raises(ToqueError):
        await failing
    with pytest.raises(EntityReset, match="reset before it handled the call"):
        await waiting
    assert cluster.loop.time() - start < 1
    assert await cluster.router.call(ref("a"), "value") == 0
    await cluster.close()


async def test_a_message_whose_row_can_not_go_now_holds_nobody_up_and_goes_later(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    host, store = cluster.hosts["d0"], cluster.stores["d0"]
    told = [cluster.router.call(ref("a"), "pass_on", "to", 1) for _ in range(3)]
    await asyncio.gather(*told)
    while host.outbox.sent < 1:
        await asyncio.sleep(COMMIT_S)
    room, store._group._rows_max = store._group._rows_max, 0  # by others' rows, as it were
    await asyncio.sleep(1)
    assert host.outbox.waiting == 3
    store._group._rows_max = room
    await asyncio.sleep(3 * limits.OUTBOX_RETRY_MS / 1_000)
    assert await cluster.router.call(ref("to"), "value") == 3
    assert host.outbox.waiting == 0
    assert not store.scan(OUTBOX)
    await cluster.close()


async def test_a_message_takes_effect_once_though_it_takes_longer_than_a_call(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    for _ in range(2):
        await cluster.router.call(ref("a"), "pass_on_slowly", "to")
    await asyncio.sleep(10 * limits.CALL_TIMEOUT_MS / 1_000)
    assert await cluster.router.call(ref("to"), "value") == 2
    assert cluster.hosts["d0"].outbox.waiting == 0
    await cluster.close()
