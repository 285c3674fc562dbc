"""What a load test was asked for: every option with its bounds, checked before anything is sent.

What is left out is filled in by scenario, and the document tells all of it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..api.client_checks import characters
from ..runtime import limits
from ..runtime.errors import InvalidArgument
from ..runtime.ids import check_workflow_name
from .arrivals import EVEN, KINDS
from .load import OPERATIONS
from .objectives import Objective, parse_objective

BURST, STEADY, RAMP, QUEUE, WAITERS = "burst", "steady", "ramp", "queue", "waiters"
NOISY, CHAOS, MIXED = "noisy-neighbour", "chaos", "mixed"
SCENARIOS = {
    BURST: "so many creates as fast as answers come",
    STEADY: "creates at a rate, for a time",
    RAMP: "a rate that grows until an objective is missed",
    QUEUE: "so many queued under a running limit, listed page by page, then drained",
    WAITERS: "so many that wait, woken all at once or one by one",
    NOISY: "a workflow with a long queue beside some that ask for little",
    CHAOS: "creates at a rate while shard processes are killed",
    MIXED: "creates, reads, events and changes, by weight",
}
WORKS = {
    "one-step": ("LoadOneStep", "null"),
    "ten-steps": ("LoadTenSteps", "null"),
    "event": ("LoadEvent", "null"),
    "hold": ("LoadHold", ""),
}
"""What instances of the test's own do: the workflow, and its params (of `hold`: the seconds)."""
WAKES = ("all", "one")
WAITS = ("event", "sleep")
QUIETS_MAX = 8
NOISY_LIMIT = 20
"""Slots of the account with noisy-neighbour, where it is the test's own."""
MIX = "create=6,create-wait=2,status=4,list=1,event=2,pause-resume=1,terminate=1"

_DEFAULTS: dict[str, dict[str, Any]] = {
    BURST: {"count": 2_000, "in_flight": 64, "duration_s": 600.0},
    STEADY: {"rate": 50.0, "duration_s": 30.0},
    RAMP: {"rate": 50.0, "duration_s": 10.0},
    QUEUE: {"count": 2_000, "in_flight": 4, "duration_s": 600.0, "limit": 50, "work": "hold"},
    WAITERS: {"count": 1_000, "in_flight": 4, "duration_s": 600.0, "work": "event"},
    NOISY: {"count": 1_000, "rate": 5.0, "duration_s": 30.0, "work": "hold", "hold_s": 0.5},
    CHAOS: {"rate": 20.0, "duration_s": 60.0, "retry_for_s": 30.0},
    MIXED: {"rate": 50.0, "duration_s": 30.0},
}
_TIMED = (STEADY, RAMP, NOISY, CHAOS, MIXED)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All options of a test, resolved.

    Attributes:
        scenario: one of SCENARIOS.
        count: instances, of scenarios that make so many.
        rate: operations a second, of those that last for a time; of each quiet neighbour.
        duration_s: how long; of a ramp: each step; else: at most.
        in_flight: calls under way at most.
        processes: that send; 1: this one.
        arrivals, seed: see `arrivals`.
        work: what the test's own instances do; `hold_s` of `hold`.
        workflow, params: another workflow, and its params as JSON.
        wait: creates wait for the end of what they made.
        limit: running instances at most, while the test lasts: of its workflow, and with
            noisy-neighbour of the account; None: as it is.
        drain_s: how long the end of what was made is waited for.
        retry_for_s: how long an operation that failed for now is tried again.
        growth, rate_max: of a ramp.
        wake, waits_for: of waiters.
        quiet: neighbours.
        kill_every_s: the mean time between a recovery and the next kill.
        kills: at most.
        mix: weights of operations.
        slo: objectives.
        keep: instances that have not ended when the test is over are left as they are.
    """

    scenario: str
    count: int = 0
    rate: float = 0.0
    duration_s: float = 0.0
    in_flight: int = 1_000
    processes: int = 1
    arrivals: str = EVEN
    seed: str = "1"
    work: str = "one-step"
    hold_s: float = 0.2
    workflow: str | None = None
    params: str = "null"
    wait: bool = False
    limit: int | None = None
    drain_s: float = 60.0
    retry_for_s: float = 0.0
    growth: float = 1.5
    rate_max: float = 5_000.0
    wake: str = "all"
    waits_for: str = "event"
    quiet: int = 3
    kill_every_s: float = 10.0
    kills: int = 100
    mix: dict[str, float] = {}
    slo: list[str] = []
    keep: bool = False

    @property
    def objectives(self) -> list[Objective]:
        """The objectives."""
        return [parse_objective(text) for text in self.slo]

    @property
    def work_of(self) -> tuple[str, str]:
        """The workflow that is created, and its params."""
        if self.workflow is not None:
            return self.workflow, self.params
        workflow, params = WORKS[self.work]
        return workflow, params or msgspec.json.encode({"seconds": self.hold_s}).decode()


def resolved(scenario: str, **given: Any) -> Options:
    """The options, checked; what is None is as the scenario has it.

    Raises:
        InvalidArgument: and says what is wrong, and what is right.
    """
    if scenario not in SCENARIOS:
        raise InvalidArgument(
            f"scenario {scenario!r:.80} is not known; they are {', '.join(SCENARIOS)}."
        )
    mix = given.pop("mix", None)
    chosen = {**_DEFAULTS[scenario], **{k: v for k, v in given.items() if v is not None}}
    if scenario == MIXED:
        chosen["mix"] = parse_mix(mix or MIX)
    elif mix is not None:
        raise InvalidArgument(f"--mix is of {MIXED}; {scenario} does one thing.")
    options = Options(scenario=scenario, **chosen)
    _check_numbers(options)
    _check_words(options)
    _check_together(options)
    return options


def _check_numbers(options: Options) -> None:
    most_s = float(limits.LOADTEST_SECONDS_MAX)
    bounds: dict[str, tuple[float, float]] = {
        "duration_s": (0.01, most_s),
        "in_flight": (1, limits.LOADTEST_IN_FLIGHT_MAX),
        "processes": (1, limits.LOADTEST_PROCESSES_MAX),
        "hold_s": (0, most_s),
        "drain_s": (0, most_s),
        "retry_for_s": (0, most_s),
        "growth": (1.01, 100),
        "rate_max": (0.01, limits.LOADTEST_RATE_MAX),
        "quiet": (1, QUIETS_MAX),
        "kill_every_s": (0.1, most_s),
        "kills": (1, 10_000),
    }
    if options.scenario in _TIMED:
        bounds["rate"] = (0.01, limits.LOADTEST_RATE_MAX)
    if options.scenario in (BURST, QUEUE, WAITERS, NOISY):
        bounds["count"] = (1, limits.LOADTEST_COUNT_MAX)
    if options.limit is not None:
        bounds["limit"] = (1, limits.RUNNING_MAX)
    for name, (least, most) in bounds.items():
        value = getattr(options, name)
        if not least <= value <= most:
            raise InvalidArgument(
                f"--{_flag(name)} is {value:,.10g}; it must be {least:,.10g} to {most:,.10g}."
            )


def _flag(name: str) -> str:
    return name.removesuffix("_s").replace("_", "-")


def _check_words(options: Options) -> None:
    for name, known in (
        ("arrivals", KINDS),
        ("work", tuple(WORKS)),
        ("wake", WAKES),
        ("waits_for", WAITS),
    ):
        value = getattr(options, name)
        if value not in known:
            raise InvalidArgument(
                f"--{_flag(name)} {value!r:.80} is not known; it is one of {', '.join(known)}."
            )
    if options.workflow is not None:
        check_workflow_name(options.workflow)
    characters(options.seed, "--seed", "--seed 1")
    try:
        msgspec.json.decode(options.params)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidArgument(
            f"--params is not JSON: {error}; for example '{{\"order\": 42}}'."
        ) from None
    assert len(options.objectives) == len(options.slo)


def _check_together(options: Options) -> None:
    own = options.workflow is None
    if own and options.params != "null":
        raise InvalidArgument(
            "--params are of a workflow of yours; name it with --workflow, or say what the "
            f"test's own do with --work ({', '.join(WORKS)})."
        )
    if not own and options.scenario in (WAITERS, NOISY, CHAOS, MIXED):
        raise InvalidArgument(
            f"{options.scenario} needs workflows of the test's own; leave --workflow out."
        )
    if options.wait and (options.scenario not in (BURST, STEADY) or options.work == "event"):
        raise InvalidArgument("--wait is of burst and steady, with work that ends by itself.")
    if options.processes > options.in_flight:
        raise InvalidArgument(
            f"--processes {options.processes} with --in-flight {options.in_flight} leaves some "
            "without a call to send; use fewer processes, or have more calls under way."
        )
    if options.scenario == RAMP and options.rate > options.rate_max:
        raise InvalidArgument(
            f"--rate {options.rate:g} is above --rate-max {options.rate_max:g}; a ramp goes up."
        )
    steps = options.duration_s * options.rate
    if options.scenario in _TIMED and steps > limits.LOADTEST_COUNT_MAX:
        raise InvalidArgument(
            f"--rate {options.rate:g} for {options.duration_s:g} s are {steps:.0f} operations; at "
            f"most {limits.LOADTEST_COUNT_MAX} are sent."
        )


def parse_mix(text: str) -> dict[str, float]:
    """Weights from `create=6,list=1`, or `InvalidArgument`."""
    found: dict[str, float] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = word.partition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if name not in OPERATIONS or name in found or not 0 <= weight <= 1e6:
            raise InvalidArgument(
                f"--mix {word!r:.80} is no weight: each of {', '.join(OPERATIONS)} may stand once, "
                f"with a number. Right: --mix {MIX}."
            )
        if weight:
            found[name] = weight
    if not found:
        raise InvalidArgument(f"--mix has nothing to do; right: --mix {MIX}.")
    return found
