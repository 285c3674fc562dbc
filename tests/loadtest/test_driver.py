"""Sending, in virtual time (simloop): what is due when, what waits, what is counted as what."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from toque.api.client_values import InstanceStatus, LinePage
from toque.gatekeeper.refusals import RateLimited
from toque.loadtest.driver import Driver
from toque.loadtest.load import BATCH, OPERATIONS, Load, Stream
from toque.loadtest.progress import Progress
from toque.loadtest.recorder import Recorder, Tick
from toque.loadtest.result import Counts, Latency
from toque.loadtest.samples import Samples
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import InstanceAlreadyExists, OutcomeUnknown, ToqueError
from toque.runtime.simloop import VirtualTimeLoop

Fault = Callable[[int], ToqueError | None]


class Server:
    """Answers after `took_s`; stands still in between."""

    def __init__(self, took_s: float = 0.01, stall: tuple[float, float] = (0, 0)) -> None:
        self.took_s = took_s
        self.stall = stall
        self.fault: Fault = lambda number: None
        self.sent_at: list[float] = []
        self.keys: list[str] = []
        self.batches: list[int] = []
        self.most = self.now = 0

    async def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        number = len(self.sent_at)
        self.sent_at.append(loop.time())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            begin, end = self.stall
            if begin <= loop.time() < end:
                await asyncio.sleep(end - loop.time())
            await asyncio.sleep(self.took_s)
        finally:
            self.now -= 1
        if (error := self.fault(number)) is not None:
            raise error

    async def create(self, workflow: str, new: Any, wait_ms: int, key: str) -> InstanceStatus:
        self.keys.append(key)
        await self._answer()
        return InstanceStatus(new.instance_id, "queued")

    async def create_batch(self, workflow: str, news: Any, key: str) -> list[str]:
        self.batches.append(len(news))
        await self._answer()
        return [new.instance_id for new in news]

    async def get(self, workflow: str, one: str, **more: Any) -> InstanceStatus:
        await self._answer()
        return InstanceStatus(one, "running")

    async def list_page(self, workflow: str, filters: Any, cursor: str | None) -> LinePage:
        await self._answer()
        return LinePage([], None)

    async def send_event(self, workflow: str, one: str, kind: str, raw: bytes, key: str) -> str:
        await self._answer()
        return "2026-01-31T12:00:00.000Z"

    async def change_status(self, workflow: str, one: str, change: Any, key: str) -> str:
        await self._answer()
        return str(change.change)


def sent(
    server: Server, *, retry_for_s: float = 0, stop_after_s: float | None = None, **stream: Any
) -> tuple[Counts, dict[str, Latency], Recorder, float]:
    """Send one stream; its counts and latencies, and how long that took."""
    usual = {"group": "create", "workflow": "W", "seconds": 10.0, "in_flight": 100}
    load = Load(
        prefix="lt", seed="1", retry_for_s=retry_for_s, streams=[Stream(**{**usual, **stream})]
    )
    recorder = Recorder(SeededEntropy(1))

    async def main() -> float:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        if stop_after_s is not None:
            loop.call_later(stop_after_s, stop.set)
        driver = Driver(server, recorder, SeededEntropy(2), loop.time)  # type: ignore[arg-type]
        await driver.run(load, stop)
        return loop.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        took_s = runner.run(main())
    total = recorder.total()
    assert recorder.in_flight == 0
    return total.counts, total.latencies, recorder, took_s


def test_a_stall_is_counted_from_when_requests_were_due() -> None:
    """No coordinated omission: two seconds of 20 a second stand still, and forty are slow."""
    server = Server(stall=(4, 6))
    counts, latencies, _, _ = sent(server, rate=20.0, in_flight=1)
    assert counts.offered == counts.accepted == 200
    create, service = latencies["create"], latencies["create_service"]
    assert create.count == service.count == 200
    assert create.p90 is not None
    assert service.p99 is not None
    assert create.p90 > 1_000
    assert service.p99 < 100  # one request was slow: what a closed loop would have told
    assert create.max == pytest.approx(2_010, rel=0.01)


def test_open_loops_keep_to_their_times() -> None:
    server = Server(took_s=1.0)
    counts, latencies, _, took_s = sent(server, rate=10.0, seconds=2.0)
    assert server.sent_at == pytest.approx([n / 10 for n in range(20)], abs=0.003)
    assert (counts.accepted, took_s) == (20, pytest.approx(2.9, abs=0.2))
    assert latencies["create"].max == pytest.approx(1_000, rel=0.01)


def test_what_could_not_be_sent_is_offered_and_failed() -> None:
    server = Server(took_s=1_000)
    counts, latencies, recorder, took_s = sent(server, rate=5.0, seconds=4.0, in_flight=2)
    assert (counts.offered, counts.failed, counts.accepted) == (20, 18, 2)
    assert recorder.failures == {"loadtest.not_sent": 18}
    assert latencies["create"].count == 2
    assert took_s < 1_002


def test_closed_loops_send_as_answers_come_and_never_more_at_once() -> None:
    server = Server(took_s=0.1)
    counts, _, _, took_s = sent(server, count=50, in_flight=5)
    assert (counts.accepted, server.most) == (50, 5)
    assert took_s == pytest.approx(1.0, abs=0.3)
    counts, _, _, took_s = sent(Server(took_s=0.1), seconds=2.0, in_flight=5)
    assert 90 <= counts.accepted <= 110
    assert took_s < 2.5


def test_batches_are_full_but_for_the_last() -> None:
    server = Server()
    counts, latencies, recorder, _ = sent(
        server, count=250, in_flight=2, weights={BATCH: 1.0}
    )  # fmt: skip
    assert sorted(server.batches) == [50, 100, 100]
    assert counts.offered == counts.accepted == recorder.created == 250
    assert latencies["create_batch"].count == 3


def test_every_operation_is_counted_as_what_it_is() -> None:
    server = Server()
    weights = dict.fromkeys(OPERATIONS, 1.0)
    counts, latencies, recorder, _ = sent(server, group="", waiter="E", weights=weights, rate=40.0)
    assert set(recorder.groups) == set(OPERATIONS)
    names = {"create", "create_wait", "status", "list", "event", "pause", "resume", "terminate"}
    assert names <= set(latencies)
    assert counts.offered == counts.accepted == 400


def test_what_there_was_no_time_for_is_offered_and_failed_in_a_burst() -> None:
    for weights, size in (({"create": 1.0}, 1), ({BATCH: 1.0}, 100)):
        server = Server(took_s=1.0)
        counts, _, recorder, _ = sent(
            server, count=10 * size - size // 2, seconds=2.5, in_flight=2, weights=weights
        )
        assert counts.offered == 10 * size - size // 2
        assert counts.accepted == 6 * size
        assert recorder.failures == {"loadtest.not_sent": counts.failed}


@pytest.mark.parametrize("retry_for_s", [0, 1])
@pytest.mark.parametrize("stop_after_s", [None, 3.0])
def test_each_operation_is_counted_once(retry_for_s: int, stop_after_s: float | None) -> None:
    errors = [RateLimited("slower"), InstanceAlreadyExists("there"), OutcomeUnknown("lost")]
    server = Server()
    server.fault = lambda number: errors[number % 3] if number % 7 in (1, 4) else None
    weights = dict.fromkeys(OPERATIONS, 1.0)
    counts, _, recorder, _ = sent(
        server, group="", waiter="E", weights=weights, rate=40.0,
        retry_for_s=retry_for_s, stop_after_s=stop_after_s,
    )  # fmt: skip
    for each in (counts, *(group.counts for group in recorder.groups.values())):
        assert each.offered == each.accepted + each.refused + each.failed > 0
    assert 0 < counts.accepted < counts.offered <= 400
    assert stop_after_s or counts.offered == 400


def test_a_create_that_was_not_answered_well_has_a_latency_too() -> None:
    server = Server(took_s=0.5)
    server.fault = lambda number: RateLimited("slower") if number % 2 else None
    _, latencies, _, _ = sent(server, count=10, in_flight=1)
    assert latencies["create"].count == latencies["create_failed"].count == 5
    assert latencies["create_failed"].min == pytest.approx(500, rel=0.02)


def test_refusals_failures_and_unknown_outcomes_are_told_apart() -> None:
    server = Server()
    errors: list[ToqueError | None] = [
        RateLimited("slower"), InstanceAlreadyExists("there"), OutcomeUnknown("lost"), None,
    ]  # fmt: skip
    server.fault = lambda number: errors[number % 4]
    counts, latencies, recorder, _ = sent(server, count=40, in_flight=1)
    assert (counts.offered, counts.accepted, counts.refused) == (40, 10, 10)
    assert (counts.failed, counts.unknown, counts.retries) == (20, 10, 0)
    assert recorder.refusals == {"rate.limited": 10}
    assert recorder.failures == {"instance.already_exists": 10, "outcome.unknown": 10}
    assert latencies["create"].count == recorder.created == 10


def test_a_repeat_has_the_same_request_id_and_counts_from_the_first() -> None:
    server = Server()
    server.fault = lambda number: OutcomeUnknown("lost") if number < 3 else None
    counts, latencies, _, _ = sent(server, count=1, retry_for_s=30)
    assert (counts.accepted, counts.retries, counts.unknown) == (1, 3, 0)
    assert len(server.keys) == 4
    assert len(set(server.keys)) == 1
    assert latencies["create"].min == pytest.approx(390, rel=0.02)  # pauses of 50, 100, 200 ms


def test_what_no_repeat_can_help_is_not_repeated() -> None:
    server = Server()
    server.fault = lambda number: InstanceAlreadyExists("there")
    counts, _, _, _ = sent(server, count=1, retry_for_s=30)
    assert (counts.failed, counts.retries) == (1, 0)


def test_a_stop_ends_it_and_what_is_under_way_is_unknown() -> None:
    counts, _, recorder, took_s = sent(Server(took_s=100), rate=10.0, stop_after_s=1.05)
    assert took_s < 4
    assert counts.offered == counts.unknown == 11
    assert recorder.failures == {"loadtest.given_up": 11}


def test_a_fault_of_the_test_itself_is_raised() -> None:
    server = Server()

    def broken(number: int) -> ToqueError | None:
        raise ZeroDivisionError

    server.fault = broken
    with pytest.raises(ZeroDivisionError):
        sent(server, count=10)


# --- progress ---


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_table_at_a_terminal_and_lines_elsewhere(terminal: bool) -> None:
    seen = io.StringIO()
    samples = Samples("default", set())
    with Progress(Console(file=seen, force_terminal=terminal, width=100)) as progress:
        progress.phase("sending [bold]")
        for second in range(5):
            samples.add(second, Tick(offered=7, creates_ms=[2.5]), None)
            progress.sample(samples)
    told = seen.getvalue()
    assert "sending [bold]" in told
    assert "create p99 ms" in told
    assert ("\x1b[" in told) is terminal
