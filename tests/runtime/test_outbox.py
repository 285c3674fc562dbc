"""Messages between entities: each takes effect once, whatever falls in between."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.runtime.counters import CLASSES, ref, start_anew
from tests.runtime.shards import COMMIT_S, Cluster
from toque.runtime import limits
from toque.runtime.errors import Overloaded, StoreFailed
from toque.runtime.host import Followed
from toque.runtime.outbox import INBOX, OUTBOX
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


@pytest.fixture(autouse=True)
def fresh_classes() -> None:
    start_anew()


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


async def test_rows_and_messages_are_one_commit_and_copies_that_do_no_harm_leave_nothing(tmp_path):
    cluster = Cluster(tmp_path, CLASSES, data_shards=3)
    keys = [f"b{n}" for n in range(6)]
    await cluster.router.call(ref("a"), "write_and_tell", keys)
    assert not await cluster.router.call(ref("a"), "has_told")
    await asyncio.sleep(1)
    assert await cluster.router.call(ref("a"), "has_told")
    known = [await cluster.router.call(ref(key), "known") for key in keys]
    assert known == [1] * 6
    assert not any(store.scan(INBOX) for store in cluster.stores.values())
    assert not any(store.scan(OUTBOX) for store in cluster.stores.values())
    await cluster.close()


async def test_without_room_for_all_neither_rows_nor_messages_are_written(tmp_path):
    cluster = Cluster(tmp_path, CLASSES)
    store, keys = cluster.stores["d0"], [f"b{n}" for n in range(6)]
    room, store._group._rows_max = store._group._rows_max, limits.BATCH_ROWS_RESERVED + 2
    with pytest.raises(Overloaded):
        await cluster.router.call(ref("a"), "write_and_tell", keys * limits.BATCH_ROWS_RESERVED)
    store._group._rows_max = room
    with pytest.raises(Overloaded):  # more than one may have waiting
        await cluster.router.call(
            ref("a"), "write_and_tell", ["b0"] * (limits.OUTBOX_ROWS_PER_ENTITY_MAX + 1)
        )
    assert await cluster.router.call(ref("a"), "known") == 0
    assert await cluster.router.call(ref("a"), "has_told")
    await asyncio.sleep(1)
    assert await cluster.router.call(ref("b0"), "known") == 0
    await cluster.close()


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("after_ms", [0, 6, 11, 19])
async def test_what_is_told_with_a_row_is_told_if_the_row_is_there(tmp_path, after_ms, outcome):
    cluster = Cluster(tmp_path, CLASSES)
    call = cluster.router.call(ref("a"), "write_and_tell", ["b"])
    await asyncio.sleep(after_ms / 1000)
    cluster.crash("d0", outcome)
    call.cancel()
    cluster.open("d0")
    await asyncio.sleep(120)
    wrote, told = [await cluster.router.call(ref(key), "known") for key in "ab"]
    assert wrote == told
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
