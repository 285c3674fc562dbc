"""Calls to a Gatekeeper take turns: at once when it is quiet, apart when all begin at once."""

from __future__ import annotations

import asyncio

import pytest

from toque.runtime import limits
from toque.runtime.simloop import VirtualTimeLoop
from toque.souschef.pacing import Pacer, gap_ms

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)
C = limits.GATEKEEPER_CALLS_PER_SECOND_MAX


def most_in_a_second(times: list[float]) -> int:
    """The most calls in any second."""
    return max(sum(at <= other < at + 1 for other in times) for at in times)


@pytest.mark.parametrize("shards", [1, 2, 4, 16])
async def test_thousands_that_begin_at_once_stay_below_c(shards: int) -> None:
    loop = asyncio.get_running_loop()
    pacers = [Pacer(loop, gap_ms(C, shards)) for _ in range(shards)]
    times: list[float] = []
    for n in range(2_000):
        pacers[n % shards].when_free("acme", lambda: times.append(loop.time()))
    assert len(times) == shards  # the first of each shard goes at once
    await asyncio.sleep(2_000 / (C / 2))
    assert len(times) == 2_000
    assert most_in_a_second(times) <= C - C // limits.FRONT_END_CALLS_PART
    assert times[-1] - times[0] < 2_000 / (C * 0.8)


async def test_a_lone_call_never_waits_and_accounts_do_not_wait_for_each_other() -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop, 10)
    times: list[tuple[str, float]] = []
    for account in ("a", "b"):
        pacer.when_free(account, lambda account=account: times.append((account, loop.time())))
    assert [account for account, _ in times] == ["a", "b"]
    await asyncio.sleep(0.02)
    pacer.when_free("a", lambda: times.append(("a", loop.time())))
    assert len(times) == 3


async def test_turns_come_in_order_and_keep_their_gap_after_a_stall() -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop, 10)
    order: list[int] = []
    for n in range(5):
        pacer.when_free("a", lambda n=n: order.append(n))
    assert pacer.waiting("a") == 4
    await asyncio.sleep(0.1)
    assert order == [0, 1, 2, 3, 4]
    assert pacer.waiting("a") == 0
