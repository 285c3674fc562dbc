"""A load test from its start to its document.

The order: the target, its workflows, its limits, the sampler, the scenario; then the opposite way,
whatever happens. A stop (Ctrl-C) leads to a document too, marked `stopped_early`; an error of the
test itself does not. The whole is bounded in time by the bounds of its parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from pathlib import Path

import msgspec

from ..api.shapes import iso
from ..api.wiring import Runtime
from ..runtime.clock import SystemClock, stopwatch_s
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import InvalidArgument, ToqueError
from .chaos import check_killable
from .fleet import Fleet, OwnFleet, ProcessFleet
from .limiting import limit_held
from .metrics_http import read_page
from .objectives import verdicts
from .options import CHAOS, NOISY, NOISY_LIMIT, Options
from .result import Machine, Result
from .samples import Samples
from .scenarios import RUN, workflows_of
from .shares import share_error
from .targets_http import Target, attached_target, ensure_workflows
from .trial import Trial

Opening = AbstractAsyncContextManager[Target]
_SAMPLE_S = 1.0
_FIRST_PAGE_S = 5.0
_FSYNCS = 50
INTERRUPTED = "interrupted"


class Watcher:
    """Is told how a test goes. Does nothing by itself.

    Attributes:
        has_begun: something may have been sent.
    """

    has_begun = False

    def phase(self, name: str) -> None:
        """What begins."""

    def sample(self, samples: Samples) -> None:
        """A second is over."""


async def run_on(
    opening: Opening,
    options: Options,
    *,
    stop: asyncio.Event | None = None,
    watcher: Watcher | None = None,
    every_s: float = _SAMPLE_S,
) -> Result:
    """Run a test on a target.

    Args:
        opening: gives the target.
        options: see `options.resolved`.
        stop: set to end it early.
        watcher: is told how it goes.
        every_s: how often the control plane is sampled.

    Raises:
        InvalidArgument: the target can't be tested so.
        ToqueError: the target did not come up, or was lost while the test was set up.
    """
    watcher = watcher or Watcher()
    watcher.phase("starting")
    async with contextlib.AsyncExitStack() as stack:
        target = await stack.enter_async_context(opening)
        await _check(target, options)
        options = _with_limit(target, options)
        await ensure_workflows(target, workflows_of(options), options.workflow is None)
        await stack.enter_async_context(limit_held(target, options))
        fleet = await _fleet(stack, target, options)
        clock = SystemClock()
        trial = Trial(
            options,
            target,
            fleet,
            Samples(target.account, workflows_of(options)),
            stop or asyncio.Event(),
            stopwatch_s,
            clock,
            SystemEntropy(),
            watcher.phase,
        )
        started_ms = clock.now_ms()
        async with _sampling(trial, watcher.sample, every_s):
            watcher.has_begun = True
            await RUN[options.scenario](trial)
        if not options.keep:
            await trial.end_rest(workflows_of(options))
        if trial.stop.is_set():
            trial.stopped = INTERRUPTED
        return await _result(trial, started_ms)


async def run_on_runtime(runtime: Runtime, options: Options) -> Result:
    """Run a test on a runtime that this program has, embedded or on Ray."""
    return await run_on(attached_target(runtime), options)


async def _check(target: Target, options: Options) -> None:
    if options.processes > 1 and target.access is None:
        raise InvalidArgument(
            "--processes needs a server: other processes can't reach an embedded runtime."
        )
    if options.scenario == CHAOS and target.shown.kind in ("embedded", "attached"):
        raise InvalidArgument("chaos kills processes of a server; an embedded runtime has none.")
    if options.scenario == CHAOS:  # before anything of the server's is touched
        await asyncio.to_thread(check_killable, target.data, target.shown.url)


def _with_limit(target: Target, options: Options) -> Options:
    """What is short of slots has a limit: one of its own, unless others share the account."""
    if options.scenario != NOISY or options.limit is not None:
        return options
    if target.shown.kind in ("http", "attached"):
        raise InvalidArgument(
            "noisy-neighbour needs slots that are short, and the account may be in use by others: "
            f"say with --limit how many may run while the test lasts, such as {NOISY_LIMIT}; then "
            "it is as it was."
        )
    return msgspec.structs.replace(options, limit=NOISY_LIMIT)


async def _fleet(stack: contextlib.AsyncExitStack, target: Target, options: Options) -> Fleet:
    if options.processes == 1:
        return OwnFleet(target.final, stopwatch_s)
    assert target.access is not None
    fleet = await ProcessFleet.start(target.access, options.processes)
    stack.push_async_callback(fleet.close)
    return fleet


# --- sampling ---


class _Sampler:
    """Takes a sample now and then. A control plane that is slow to tell holds no sample up.

    Args:
        trial: whose.
        told: called after each sample.
        every_s: how often.
    """

    def __init__(self, trial: Trial, told: Callable[[Samples], None], every_s: float) -> None:
        self._trial = trial
        self._told = told
        self._every_s = every_s
        self._asking: asyncio.Task[bytes | None] | None = None
        self._last: bytes | None = None

    async def sample(self, patience_s: float) -> None:
        """Note what was sent, and the control plane's figures if they come in that time."""
        trial = self._trial
        if self._asking is None:
            self._asking = asyncio.ensure_future(trial.target.scrape())
        await asyncio.wait([self._asking], timeout=patience_s)
        page = self._page()
        readings = None if page is None else read_page(page)
        at_s = max(0.0, trial.now() - trial.begin_s)
        trial.samples.add(at_s, trial.fleet.take_tick(), readings)
        self._told(trial.samples)

    def _page(self) -> bytes | None:
        """A page that was not seen yet."""
        if self._asking is None or not self._asking.done():
            return None
        asked, self._asking = self._asking, None
        try:
            page = asked.result()
        except ToqueError:  # a control plane that can't tell has no figures
            return None
        if page is None or page == self._last:
            return None
        self._last = page
        return page

    async def run(self) -> None:
        """Sample for ever."""
        trial, number = self._trial, 0
        while True:
            number += 1
            wait_s = trial.begin_s + number * self._every_s - trial.now()
            if wait_s < -self._every_s:  # held up: the seconds that passed have no sample
                number += int(-wait_s / self._every_s)
                continue
            await asyncio.sleep(max(0.0, wait_s))
            await self.sample(self._every_s / 2)

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)


@contextlib.asynccontextmanager
async def _sampling(
    trial: Trial, told: Callable[[Samples], None], every_s: float
) -> AsyncIterator[None]:
    """A sample now and then, and a last one at the end."""
    sampler = _Sampler(trial, told, every_s)
    await sampler.sample(_FIRST_PAGE_S)
    trial.begin_s = trial.now()
    running = asyncio.ensure_future(sampler.run())
    try:
        yield
    finally:
        running.cancel()
        ended = await asyncio.gather(running, return_exceptions=True)
        await sampler.sample(_SAMPLE_S)
        await sampler.close()
    for error in ended:
        if isinstance(error, Exception):
            raise error


# --- the document ---


async def _result(trial: Trial, started_ms: int) -> Result:
    options, samples = trial.options, trial.samples
    total = trial.recorder.total()
    wall_s = trial.sent_s
    if trial.span is not None:
        wall_s = max(wall_s, (trial.span.last_ms - trial.span.first_ms) / 1000)
    share = share_error(samples.errors) if options.scenario == NOISY else None
    result = Result(
        toque=version("toque"),
        scenario=options.scenario,
        options=msgspec.to_builtins(options),
        target=trial.target.shown,
        machine=await asyncio.to_thread(machine, trial.target.data),
        started_on=iso(started_ms),
        wall_s=round(wall_s, 3),
        stopped_early=trial.stopped,
        counts=total.counts,
        refusals=dict(trial.recorder.refusals),
        failures=dict(trial.recorder.failures),
        latencies=total.latencies,
        groups=trial.recorder.shown_groups(),
        series=samples.series(),
        control_plane=samples.totals(),
        processes=samples.processes,
        chaos=trial.kills,
        fairness=None if share is None else {"share_error": round(share, 4)},
        ramp=trial.ramp,
        held_rate=trial.held_rate,
        terminated=trial.terminated,
    )
    result.slos = verdicts(options.objectives, result)
    return result


def machine(data: Path | None) -> Machine:
    """This machine; `fsync_ms` where the data lies, if it lies here."""
    return Machine(
        python=platform.python_version(),
        platform=platform.platform(),
        cores=os.cpu_count() or 1,
        fsync_ms=None if data is None else _fsync_ms(data),
    )


def _fsync_ms(folder: Path) -> float | None:
    """The median of some real fsyncs of a small file there."""
    took: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(_FSYNCS):
                began = stopwatch_s()
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
                took.append((stopwatch_s() - began) * 1000)
    except OSError:
        return None
    return round(sorted(took)[len(took) // 2], 3)
