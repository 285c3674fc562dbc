"""A test under way: what scenarios work with. They send loads, wait for ends, and look at lists.

How long instances took is read from the lists after the load, 500 a page, by the times that the
server itself has noted; so nothing is asked while they run, and clocks of two machines are never
compared. A list is read to a bound; beyond it ends are counted by the control plane's own counters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import NamedTuple

from ..api.client_values import InstanceLine
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
_SETTLED_PAGES = 3
_LIVE = ("queued", "running", "waiting", "paused", "waitingForPause", "rollingBack")


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
        self.sent_s += self.now() - began
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

    async def until_ended(self, count: int, within_s: float) -> None:
        """Wait until so many have ended by the control plane's count, or time is up."""
        until = self.now() + within_s
        while self.samples.ended < count and self.now() < until and not self.stop.is_set():
            await asyncio.sleep(_CHECK_S)

    async def drain(self, workflows: Collection[str], within_s: float) -> bool:
        """Wait until all instances of some workflows have ended; says so if they did not."""
        self.phase("waiting for the ends")
        until = self.now() + within_s
        quiet, seen = 0, -1
        while not self.stop.is_set() and self.now() < until:
            if self.samples.has_figures:
                is_new, seen = self.samples.pages != seen, self.samples.pages
                quiet = quiet + is_new if self.samples.live(workflows) == 0 else 0
                all_ended = self.samples.ended >= self.recorder.created
            else:
                quiet = quiet + 1 if await self._live(workflows) == 0 else 0
                all_ended = quiet > 1
            if (quiet and all_ended) or quiet > _SETTLED_PAGES:
                return True
            await asyncio.sleep(_CHECK_S if self.samples.has_figures else _CHECK_S * 5)
        if not self.stop.is_set():
            self.stopped = f"not all instances had ended after {within_s:g} s"
        return False

    async def _live(self, workflows: Iterable[str]) -> int:
        found = 0
        for workflow in workflows:
            counts = (await self.client.get_workflow(workflow)).instances
            found += sum(counts.get(status, 0) for status in _LIVE)
        return found

    async def counted(self, workflow: str, status: str) -> float:
        """How many instances have a status; endless where the server has ceased to count."""
        told = self.samples.count(status)
        if told is not None:
            return told
        found = (await self.client.get_workflow(workflow)).instances.get(status, 0)
        return found if found < limits.COUNT_ROWS_MAX - 1 else float("inf")

    # --- lists ---

    async def sweep(self, load: Load, into: Recorder | None = None, due: Due | None = None) -> None:
        """Read the instances of a load from the lists: their ends, and how long they took.

        Args:
            load: whose.
            into: see `send`.
            due: when an instance was to go on, in the server's milliseconds.
        """
        self.phase("reading the lists")
        recorder = into or self.recorder
        left = limits.LOADTEST_SWEEP_ROWS_MAX
        for workflow in sorted(_made_by(load)):
            filters = {"prefix": f"{load.prefix}.", "per_page": str(limits.PER_PAGE_MAX)}
            cursor: str | None = None
            while left > 0:
                try:
                    backend = self.client.backend
                    page = await backend.list_page(workflow, filters, cursor)
                except ToqueError as error:
                    self.stopped = self.stopped or f"the lists could not be read: {error}"
                    return
                for line in page.lines:
                    self._take(recorder, load, line, due)
                left -= len(page.lines)
                cursor = page.cursor
                if cursor is None:
                    break

    def _take(self, recorder: Recorder, load: Load, line: InstanceLine, due: Due | None) -> None:
        tally = recorder.group(group_of(line.id, load.prefix))
        created = _ms(line.created_on)
        last = created
        if line.started_on is not None:
            tally.latencies.add("start", max(0.0, _ms(line.started_on) - created))
        if line.ended_on is not None:
            last = _ms(line.ended_on)
            tally.latencies.add("end", max(0.0, last - created))
            tally.counts.completed += line.status == "complete"
            tally.counts.errored += line.status == "errored"
            was_due = None if due is None else due(line)
            if was_due is not None and created < was_due:
                tally.latencies.add("wake", max(0.0, last - was_due))
        span = self.span or Span(created, last)
        self.span = Span(min(span.first_ms, created), max(span.last_ms, last))


def _made_by(load: Load) -> set[str]:
    return {name for stream in load.streams for name in (stream.workflow, stream.waiter) if name}


def _ms(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp() * 1000
