"""What each scenario does, in terms of loads, waits and lists.

Each leaves what it counted in the trial. A stop may come at any time: then what comes next is left
out, but for what puts the server back as it was.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from ..runtime import limits
from ..runtime.errors import InstanceNotFound, InvalidArgument, OutcomeUnknown, ToqueError
from ..runtime.ids import Placement
from . import options as names
from .arrivals import ramp
from .chaos import PROBED, Probe, check_killable, kill
from .driver import is_refusal
from .load import BATCH, CREATE, Load, Stream, split
from .objectives import HELD_RATE, judged, parse_objective
from .options import Options
from .recorder import Recorder
from .result import Kill, Machine, RampStep, Result, Target
from .trial import LIVE, Trial

RAMP_OBJECTIVES = ("p99_create_ms=250", "error_rate=0.01", "refusal_rate=0.01")
"""What has to hold if no objective was named."""
_LEAD_S = 3.0
_BATCHED_PER_S = 400
_RECOVERY_MAX_S = 60.0
NOISY = "LoadNoisy"
_SETTLING_S = 3.0
"""Slots go from hand to hand within three cycles of the Gatekeeper."""


def workflows_of(options: Options) -> set[str]:
    """The workflows that a scenario uses."""
    workflow, _ = options.work_of
    if options.scenario == names.WAITERS:
        return {"LoadEvent" if options.waits_for == "event" else "LoadSleep"}
    if options.scenario == names.NOISY:
        return {NOISY, *_quiets(options)}
    if options.scenario == names.MIXED:
        return {workflow, "LoadEvent"}
    if options.scenario == names.CHAOS:
        return {workflow, PROBED}
    return {workflow}


def limited(options: Options) -> str | None:
    """Whose running limit the scenario sets; None: the account's."""
    return None if options.scenario == names.NOISY else options.work_of[0]


def _quiets(options: Options) -> list[str]:
    return [f"LoadQuiet{number + 1}" for number in range(options.quiet)]


def _stream(options: Options, **more: Any) -> Stream:
    """Creates as the options have them, with some of it otherwise."""
    workflow, params = options.work_of
    usual: dict[str, Any] = {
        "group": CREATE,
        "workflow": workflow,
        "params": params,
        "seconds": options.duration_s,
        "in_flight": options.in_flight,
        "arrivals": options.arrivals,
        "wait_ms": limits.LOADTEST_WAIT_MS if options.wait else 0,
    }
    return Stream(**{**usual, **more})


async def _sent_and_ended(trial: Trial, stream: Stream) -> None:
    load = trial.load(stream)
    trial.phase("sending")
    await trial.send(load)
    await _ended(trial, load)


async def _ended(trial: Trial, load: Load) -> None:
    """Wait for the ends, if there are any to come, and read them."""
    ends = not _never_ends(trial.options)
    if ends:
        await trial.drain([load], trial.options.drain_s)
    await trial.sweep(load, ends=ends)


def _never_ends(options: Options) -> bool:
    return options.workflow is None and options.work == "event"


async def burst(trial: Trial) -> None:
    """So many creates, as fast as answers come."""
    await _sent_and_ended(trial, _stream(trial.options, count=trial.options.count))


async def steady(trial: Trial) -> None:
    """Creates at a rate."""
    await _sent_and_ended(trial, _stream(trial.options, rate=trial.options.rate))


async def mixed(trial: Trial) -> None:
    """Operations by weight; each kind is a group."""
    stream = _stream(
        trial.options,
        group="",
        waiter="LoadEvent",
        weights=trial.options.mix,
        rate=trial.options.rate,
    )
    await _sent_and_ended(trial, stream)


async def ramped(trial: Trial) -> None:
    """Rates that grow until an objective is missed."""
    options = trial.options
    objectives = [each for each in options.objectives if each.name != HELD_RATE]
    objectives = objectives or [parse_objective(text) for text in RAMP_OBJECTIVES]
    for number, rate in enumerate(ramp(options.rate, options.growth, options.rate_max)):
        if trial.stop.is_set():
            return
        trial.phase(f"{rate:g} a second")
        load = trial.load(_stream(options, rate=rate), number=number)
        step = Recorder(trial.draws)
        began = trial.now()
        await trial.send(load, step)
        sent_s = trial.now() - began
        ends = not _never_ends(options)
        if ends:
            await trial.until_none([load], LIVE, options.drain_s)
        await trial.sweep(load, step, ends=ends)
        found = _outcome(trial, step, sent_s)
        trial.recorder.merge(step.part())
        if trial.stop.is_set():
            return
        told = [judged(each, found) for each in objectives]
        held = all(each.met for each in told)
        trial.ramp.append(RampStep(round(rate, 3), held, told))
        if not held:
            return
        trial.held_rate = round(rate, 3)


def _outcome(trial: Trial, step: Recorder, wall_s: float) -> Result:
    """A step of a ramp, as a result that objectives can be held against."""
    total = step.total()
    return Result(
        toque="",
        scenario=names.RAMP,
        options={},
        target=Target(""),
        machine=Machine("", "", 0),
        started_on="",
        wall_s=wall_s,
        counts=total.counts,
        latencies=total.latencies,
        control_plane=trial.samples.totals(),
    )


async def queue(trial: Trial) -> None:
    """So many queued, listed page by page, drained."""
    options = trial.options
    stream = _stream(options, weights={BATCH: 1.0}, count=options.count, wait_ms=0)
    load = trial.load(stream)
    trial.phase("filling the queue")
    await trial.send(load)
    if not trial.stop.is_set():
        trial.phase("listing")
        await _walk(trial, stream.workflow)
    await _ended(trial, load)


async def _walk(trial: Trial, workflow: str) -> None:
    """All pages of a list, each timed."""
    tally = trial.recorder.group(CREATE)
    cursor: str | None = None
    for _ in range(limits.LOADTEST_PAGES_MAX):
        if trial.stop.is_set():
            return
        began = trial.now()
        try:
            page = await trial.target.final.list_page(
                workflow, {"per_page": str(limits.PER_PAGE_MAX)}, cursor
            )
        except ToqueError as error:
            trial.stopped = trial.stopped or f"the list could not be read: {error}"
            return
        tally.latencies.add("list", (trial.now() - began) * 1000)
        cursor = page.cursor
        if cursor is None:
            return


# --- waiters ---


async def waiters(trial: Trial) -> None:
    """So many wait; then they are woken."""
    options = trial.options
    (workflow,) = workflows_of(options)
    lead_s = _LEAD_S + options.count / _BATCHED_PER_S
    until_s = math.ceil(trial.clock.now_ms() / 1000 + lead_s)
    params = "null" if options.waits_for == "event" else f'{{"until": {until_s}}}'
    load = trial.load(
        _stream(
            options,
            workflow=workflow,
            params=params,
            weights={BATCH: 1.0},
            count=options.count,
            wait_ms=0,
        )
    )
    trial.phase("making them")
    await trial.send(load)
    trial.phase("waiting until they wait")
    await trial.until_none([load], ("queued", "running"), options.drain_s)
    if options.waits_for == "sleep":
        await trial.drain([load], lead_s + options.drain_s)
        await trial.sweep(load, due=lambda line: until_s * 1000.0)
        return
    sent: dict[str, float] = {}
    trial.phase("waking them")
    await _wake(trial, workflow, _ids(trial, load), sent)
    await trial.drain([load], options.drain_s)
    await trial.sweep(load, due=lambda line: sent.get(line.id))


def _ids(trial: Trial, load: Load) -> list[str]:
    parts = trial.options.processes
    return [one for part in split(load, parts) for one in part.ids()]


async def _wake(trial: Trial, workflow: str, ids: list[str], sent: dict[str, float]) -> None:
    """Send each an event; one by one if asked for, each then waited for."""
    left = iter(ids)
    one_by_one = trial.options.wake == "one"
    until = trial.now() + trial.options.duration_s

    async def worker() -> None:
        for one in left:
            if trial.stop.is_set() or trial.now() > until:
                return
            await _event(trial, workflow, one, sent)
            if one_by_one and one in sent:
                try:
                    await trial.client.instance(workflow, one).wait(trial.options.drain_s)
                except (ToqueError, TimeoutError):
                    pass  # whether it has ended is read from the lists, as of all

    lanes = 1 if one_by_one else max(trial.options.in_flight, 64)
    await asyncio.gather(*(worker() for _ in range(lanes)))


async def _event(trial: Trial, workflow: str, one: str, sent: dict[str, float]) -> None:
    recorder = trial.recorder
    tally = recorder.group(CREATE)
    key = f"{one}.go"
    began = trial.now()
    try:
        at = await trial.target.final.send_event(workflow, one, "go", b"null", key)
    except InstanceNotFound:
        return  # it was not made, and counts as that
    except ToqueError as error:
        recorder.taken_back(tally)
        if is_refusal(error):
            recorder.refused(tally, error.code)
        else:
            recorder.failed(tally, error.code, unknown=isinstance(error, OutcomeUnknown))
        return
    tally.latencies.add("event", (trial.now() - began) * 1000)
    sent[one] = datetime.fromisoformat(at).timestamp() * 1000


# --- neighbours, chaos ---


async def noisy_neighbour(trial: Trial) -> None:
    """One workflow with a long queue; some beside it that ask for little."""
    options = trial.options
    _, params = options.work_of
    noisy = trial.load(
        _stream(
            options,
            group="noisy",
            workflow=NOISY,
            params=params,
            weights={BATCH: 1.0},
            count=options.count,
            in_flight=4,
        )
    )
    quiet = trial.load(
        *(
            _stream(options, group="quiet", workflow=name, params=params, rate=options.rate)
            for name in _quiets(options)
        ),
        number=1,
    )
    trial.phase("filling the noisy one's queue")
    await trial.send(noisy)
    trial.phase("the quiet ones beside it")
    settling_s = min(_SETTLING_S, options.duration_s / 4)
    trial.samples.shares_from_s = trial.now() - trial.begin_s + settling_s
    await trial.send(quiet)
    await trial.drain([quiet], options.drain_s)
    await trial.sweep(noisy, ends=False)  # its queue is there to be long, not to be done
    await trial.sweep(quiet)


async def chaos(trial: Trial) -> None:
    """Creates at a rate; meanwhile shards' processes are killed, one after another."""
    shards = await asyncio.to_thread(check_killable, trial.target.data, trial.target.shown.url)
    over = asyncio.Event()
    killing = asyncio.ensure_future(_kill_some(trial, shards, over))
    try:
        load = trial.load(_stream(trial.options, rate=trial.options.rate))
        trial.phase("sending, and killing")
        await trial.send(load)
        over.set()
        await killing  # what was killed last is timed to its end
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    await _ended(trial, load)


async def _kill_some(trial: Trial, shards: list[str], over: asyncio.Event) -> None:
    data, options, client = trial.target.data, trial.options, trial.client
    assert data is not None
    placement = Placement(sum(name.startswith("d") for name in shards))
    uuid = (await client.get_workflow(PROBED)).id
    probe = Probe(client, trial.target.account, uuid, placement, f"{trial.prefix}-p")
    tally = trial.recorder.group(CREATE)
    for _ in range(options.kills):
        draw = -math.log(1.0 - trial.draws.random()) * options.kill_every_s
        if await trial.pause(min(draw, 3 * options.kill_every_s), over):
            return
        began = trial.now()
        try:
            shard = await kill(data, trial.target.shown.url, trial.draws)
        except InvalidArgument as error:  # the server has gone, and another may have come
            trial.stopped = trial.stopped or f"no more was killed: {error}"
            return
        if shard is None:
            continue
        killed = Kill(round(began - trial.begin_s, 3), "kill -9", shard)
        trial.kills.append(killed)
        dying_s = trial.now() - began
        recovered_s = await probe.recovered(shard, trial.now, _RECOVERY_MAX_S)
        if recovered_s is not None:
            killed.recovered_s = round(dying_s + recovered_s, 3)
            tally.latencies.add("recovery", killed.recovered_s * 1000)


RUN: dict[str, Callable[[Trial], Awaitable[None]]] = {
    names.BURST: burst,
    names.STEADY: steady,
    names.RAMP: ramped,
    names.QUEUE: queue,
    names.WAITERS: waiters,
    names.NOISY: noisy_neighbour,
    names.CHAOS: chaos,
    names.MIXED: mixed,
}
