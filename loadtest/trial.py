"""A test under way: what scenarios work with. They send loads, wait for ends, and look at lists.

How long instances took is read from the lists after the load, 500 a page, by the times that the
server itself has noted; so nothing is asked while they run, and clocks of two machines are never
compared. All are counted; the times of a bounded number are taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import NamedTuple

from ..api.client_values import InstanceLine
from ..api.listing import FINAL_STATUSES, STATUSES
from ..runtime import limits
from ..runtime.clock import Clock
from ..runtime.entropy import Entropy, SeededEntropy
from ..runtime.errors import ToqueError
from .fleet import Fleet
from .load import Load, Stream, group_of
from .options import Options
from .recorder import Part, Recorder
from .result import Kill, RampStep
from .samples import Samples
from .targets_http import Target

Phase = Callable[[str], None]
Due = Callable[[InstanceLine], float | None]
_CHECK_S = 0.1
_CHECK_MOST_S = 2.0
LIVE = tuple(status for status in STATUSES if status not in FINAL_STATUSES)


class Span(NamedTuple):
    """From the first create to the last end, in the server's own milliseconds."""

    first_ms: float
    last_ms: float


class Trial:
    """See the module.

    Args:
        options: what was asked for.
        target: what is put under load.
        fleet: sends.
        samples: grow meanwhile.
        stop: set when it is to end early.
        now: a stopwatch.
        clock: for instants that the server is told.
        entropy: for the prefix of ids.
        phase: told what begins.

    Attributes:
        client: for what is not measured.
        recorder: all that was counted.
        draws: seeded.
        prefix: what the ids of all instances begin with.
        stopped: why it ended early.
        sent_s: seconds in which loads were sent.
        span: of the instances that were seen.
        lists_lost: the lists can't be read any more, so nothing else is asked.
        terminated: instances that had not ended, and that the test has ended.
    """

    def __init__(
        self,
        options: Options,
        target: Target,
        fleet: Fleet,
        samples: Samples,
        stop: asyncio.Event,
        now: Callable[[], float],
        clock: Clock,
        entropy: Entropy,
        phase: Phase,
    ) -> None:
        self.options = options
        self.target = target
        patience_s = min(options.drain_s, limits.CLIENT_RETRY_FOR_MS / 1000)
        self.client = target.client.with_options(retry_for=patience_s)
        self.fleet = fleet
        self.samples = samples
        self.stop = stop
        self.now = now
        self.clock = clock
        self.phase = phase
        self.recorder = Recorder(entropy)
        self.draws = SeededEntropy(options.seed)
        self.prefix = f"lt{entropy.new_id()[:10]}"
        self.begin_s = now()
        self.stopped: str | None = None
        self.sent_s = 0.0
        self.span: Span | None = None
        self.kills: list[Kill] = []
        self.ramp: list[RampStep] = []
        self.held_rate: float | None = None
        self.lists_lost = False
        self.terminated = 0
        self._sent_at: dict[str, float] = {}

    def load(self, *streams: Stream, number: int = 0) -> Load:
        """A load with a prefix of its own."""
        return Load(
            prefix=f"{self.prefix}-{number}",
            seed=f"{self.options.seed}/{number}",
            streams=list(streams),
            retry_for_s=self.options.retry_for_s,
        )

    async def send(self, load: Load, into: Recorder | None = None) -> Part:
        """Send a load; what it brought is added to the whole, or to `into`."""
        began = self.now()
        part = await self.fleet.run(load, self.stop)
        self._sent_at[load.prefix] = self.now()
        self.sent_s += self._sent_at[load.prefix] - began
        (into or self.recorder).merge(part)
        return part

    async def pause(self, seconds: float, over: asyncio.Event | None = None) -> bool:
        """Wait for so long; True: it is to stop, or `over` was set, before that."""
        events = [self.stop] if over is None else [self.stop, over]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            done, _ = await asyncio.wait(
                waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            return bool(done)
        finally:
            for wait in waits:
                wait.cancel()

    # --- ends ---

    async def drain(self, loads: Collection[Load], within_s: float) -> bool:
        """Wait until all instances of some loads have ended; says so if they did not."""
        self.phase("waiting for the ends")
        ended = await self.until_none(loads, LIVE, within_s)
        if not ended and not self.stop.is_set():
            self.stopped = self.stopped or f"not all instances had ended after {within_s:g} s"
        return ended

    async def until_none(
        self, loads: Collection[Load], statuses: Collection[str], within_s: float
    ) -> bool:
        """Wait until no instance of some loads has one of these statuses; False: some had.

        Others, of other tests or of people, do not matter. Asked ever more rarely.
        """
        until = self.now() + within_s
        wait_s = _CHECK_S
        while not self.stop.is_set() and not self.lists_lost:
            try:
                if not await self._any(loads, statuses):
                    return True
            except ToqueError as error:
                self._lose_lists(error)
            if self.now() >= until:
                break
            await self.pause(min(wait_s, max(0.0, until - self.now())))
            wait_s = min(2 * wait_s, _CHECK_MOST_S)
        return False

    async def _any(self, loads: Iterable[Load], statuses: Collection[str]) -> bool:
        for load in loads:
            filters = {
                "prefix": f"{load.prefix}.", "status": ",".join(statuses), "per_page": "1"
            }  # fmt: skip
            for workflow in sorted(_made_by(load)):
                if (await self.client.backend.list_page(workflow, filters, None)).lines:
                    return True
        return False

    def _lose_lists(self, error: ToqueError) -> None:
        self.lists_lost = True
        self.stopped = self.stopped or f"the lists could not be read: {error}"

    async def end_rest(self, workflows: Iterable[str]) -> None:
        """Terminate the instances of this test that have not ended, whatever made them."""
        if self.lists_lost:
            return  # nobody is there to do it
        self.phase("ending what is left")
        for workflow in sorted(workflows):
            try:
                async for done in self.client.change_matching(
                    workflow, "terminate", status=LIVE, prefix=f"{self.prefix}-"
                ):
                    self.terminated += len(done.changed)
            except ToqueError as error:
                self.stopped = self.stopped or (
                    f"the rest of {workflow} could not be ended: {error}"
                )

    # --- lists ---

    async def sweep(
        self,
        load: Load,
        into: Recorder | None = None,
        due: Due | None = None,
        ends: bool = True,
    ) -> None:
        """Read the instances of a load from the lists: their ends, and how long they took.

        One that has not got so far has waited for its age at least, and counts with that.

        Args:
            load: whose.
            into: see `send`.
            due: when an instance was to go on, in the server's milliseconds.
            ends: whether they should have ended by now.
        """
        self.phase("reading the lists")
        recorder = into or self.recorder
        left = limits.LOADTEST_SWEEP_ROWS_MAX
        since_ms = (self.now() - self._sent_at.get(load.prefix, self.now())) * 1000
        latest_ms, open_lines = 0.0, list[InstanceLine]()
        for workflow in sorted(_made_by(load)):
            filters = {"prefix": f"{load.prefix}.", "per_page": str(limits.PER_PAGE_MAX)}
            cursor: str | None = None
            while not self.lists_lost:
                try:
                    backend = self.client.backend
                    page = await backend.list_page(workflow, filters, cursor)
                except ToqueError as error:
                    self._lose_lists(error)
                    break
                for line in page.lines:
                    left -= 1
                    if left < 0:
                        _count(recorder, load, line, ends=ends)
                        continue
                    latest_ms = max(latest_ms, _ms(line.created_on))
                    if line.ended_on is None:
                        open_lines.append(line)
                    else:
                        self._take(recorder, load, line, due)
                cursor = page.cursor
                if cursor is None:
                    break
        for line in open_lines:
            self._take_open(recorder, load, line, due, latest_ms + since_ms, ends)

    def _take(self, recorder: Recorder, load: Load, line: InstanceLine, due: Due | None) -> None:
        """Count one that has ended."""
        assert line.ended_on is not None
        tally = recorder.group(group_of(line.id, load.prefix))
        created, ended = _ms(line.created_on), _ms(line.ended_on)
        if line.started_on is not None:
            tally.latencies.add("start", max(0.0, _ms(line.started_on) - created))
        tally.latencies.add("end", max(0.0, ended - created))
        _count(recorder, load, line, ends=True)
        was_due = None if due is None else due(line)
        if was_due is not None and created < was_due:
            tally.latencies.add("wake", max(0.0, ended - was_due))
        self._spans(created, ended)

    def _take_open(
        self,
        recorder: Recorder,
        load: Load,
        line: InstanceLine,
        due: Due | None,
        now_ms: float,
        ends: bool,
    ) -> None:
        """Count one that has not ended. `now_ms`: the server's time, or a little before it."""
        tally = recorder.group(group_of(line.id, load.prefix))
        created = _ms(line.created_on)
        started = now_ms if line.started_on is None else _ms(line.started_on)
        tally.latencies.add("start", max(0.0, started - created))
        self._spans(created, now_ms if ends else created)
        if not ends:
            return
        _count(recorder, load, line, ends=True)
        tally.latencies.add("end", max(0.0, now_ms - created))
        was_due = None if due is None else due(line)
        if was_due is not None and created < was_due < now_ms:
            tally.latencies.add("wake", now_ms - was_due)

    def _spans(self, first_ms: float, last_ms: float) -> None:
        span = self.span or Span(first_ms, last_ms)
        self.span = Span(min(span.first_ms, first_ms), max(span.last_ms, last_ms))


def _count(recorder: Recorder, load: Load, line: InstanceLine, *, ends: bool) -> None:
    """How it stands. `ends`: it should have ended by now."""
    counts = recorder.group(group_of(line.id, load.prefix)).counts
    counts.completed += line.status == "complete"
    counts.errored += line.status == "errored"
    if ends and line.ended_on is None:
        counts.unfinished += 1
        counts.unstarted += line.started_on is None


def _made_by(load: Load) -> set[str]:
    return {name for stream in load.streams for name in (stream.workflow, stream.waiter) if name}


def _ms(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp() * 1000
