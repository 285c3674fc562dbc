"""Entities on a real host and store: gates, activation, alarms, outbox, crashes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.runtime.counters import CLASSES, Counter, Pair, Timer, ref, start_anew
from tests.runtime.shards import COMMIT_S, Cluster
from toque.runtime import limits
from toque.runtime.entity import DurableObject
from toque.runtime.errors import (
    CallCycle,
    EntityReset,
    InvalidArgument,
    Overloaded,
    ToqueError,
    UnknownMethod,
)
from toque.runtime.host import HostFaults
from toque.runtime.memory import resident_bytes
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.storage import KV
from toque.runtime.sweeper import Sweeper

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


@pytest.fixture(autouse=True)
def fresh_classes() -> None:
    start_anew()


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


# --- resets ---


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
