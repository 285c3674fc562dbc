"""The promises that a run must keep, each with a count of how often it was looked at.

Bodies of steps report their starts and ends to `Bodies`, clients what they were told to
`Claims`. Neither knows how the system works inside. What is on disk is judged in `disk`.

A step's result is *visible* once something that depends on it has happened: a later body of the
run began, a client read it, the instance ended. From then on it is final.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toque.runtime.codec import decode_json

UNDO = "undo "
End = tuple[str, bytes | None] | None
"""How an instance ended: status and output; None while it has not."""
FINAL = frozenset({"complete", "errored", "terminated"})


class PromiseBroken(Exception):
    """A run broke a promise."""

    def __init__(self, promise: str, told: str) -> None:
        super().__init__(promise, told)
        self.promise = promise
        self.told = told

    def __str__(self) -> str:
        return f"{self.promise}: {self.told}"


class Promises:
    """Counts the checks of each promise, and takes the first that fails.

    Args:
        on_broken: told of that one, at once.
        ignored: promises that may break (to see which others would).
    """

    def __init__(
        self,
        on_broken: Callable[[PromiseBroken], None] = lambda broken: None,
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        self.checked: Counter[str] = Counter()
        self.broken: PromiseBroken | None = None
        self._on_broken = on_broken
        self._ignored = ignored

    def hold(self, promise: str, kept: bool, *told: object) -> None:
        """Count a check; keep the first failure (bodies may not raise into the engine)."""
        self.checked[promise] += 1
        if not kept and self.broken is None and promise not in self._ignored:
            self.broken = PromiseBroken(promise, " ".join(map(str, told)))
            self._on_broken(self.broken)

    def raise_broken(self) -> None:
        """Raise the first failure, if there is one."""
        if self.broken is not None:
            raise self.broken


@dataclass
class Execution:
    """One start of a step's body; `life` is the run id of the instance then."""

    token: int
    run: str
    life: str
    step: str
    attempt: int
    process: str
    start_s: float
    end_s: float | None = None


@dataclass
class _Step:
    executions: list[Execution] = field(default_factory=list)
    visible: int | None = None  # the token of the result that is final


class Bodies:
    """Starts and ends of all bodies.

    A run has several lives: each restart and each continuation is a new one.

    Args:
        promises: where checks are counted.
    """

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._steps: dict[tuple[str, str, str], _Step] = {}
        self._lives: dict[str, list[str]] = {}
        self._newest: dict[tuple[str, str], str] = {}
        self._undoing: dict[tuple[str, str], str] = {}
        self._kept: dict[str, Mapping[str, bool]] = {}
        self.executions: list[Execution] = []

    def begin(
        self,
        execution_of: tuple[str, str, str, int],
        process: str,
        now_s: float,
        once: bool,
        *,
        fenced: bool = False,
        late: bool = False,
    ) -> int:
        """A body starts; gives its token, which is its result.

        A process that hung after an attempt was made durable, and wakes when another owner has
        repeated it, begins that attempt late: no check on its side can be quick enough. So does a
        worker that has hung (`late`), though nobody else can have repeated it before that.
        """
        run, life, step_name, attempt = execution_of
        step = self._steps.setdefault((run, life, step_name), _Step())
        known = [e.attempt for e in step.executions]
        if not fenced and not (late and life in self.lives_of(run)[:-1]):
            self._lived(run, life, step_name)
        self._promises.hold(
            "recorded step never runs again",
            step.visible is None or (fenced and attempt < max(known, default=0)),
            f"{run} {step_name}: attempt {attempt} began on {process} although the result",
            f"{step.visible} was visible",
        )
        if once:
            self._promises.hold(
                "at most once",
                not step.executions,
                f"{run} {step_name}: a step with no retries began a second time on {process}",
            )
        self._promises.hold(
            "attempts have numbers of their own",
            attempt not in known,
            f"{run} {step_name}: attempt {attempt} began twice",
        )
        token = len(self.executions) + 1
        execution = Execution(token, run, life, step_name, attempt, process, now_s)
        self.executions.append(execution)
        step.executions.append(execution)
        return token

    def _lived(self, run: str, life: str, step_name: str) -> None:
        """Something of a life begins: is it the newest, and may this begin in it?"""
        lives = self._lives.setdefault(run, [])
        if life not in lives:
            lives.append(life)
        hold = self._promises.hold
        hold(
            "a run that was replaced begins nothing",
            life == lives[-1],
            f"{run} {step_name} began in {life} after {lives[-1]} had",
        )
        if run in self._kept:
            hold(
                "a restart keeps what came before its step",
                life == lives[0] or not self._kept[run].get(step_name, False),
                f"{run} {step_name} began anew",
            )
        if not step_name.startswith(UNDO):
            hold(
                "once a rollback has begun nothing else does",
                (run, life) not in self._undoing,
                f"{run} {step_name}",
            )
        else:
            last = self._undoing.get((run, life), "")
            if last not in ("", step_name) and not self.of(run, life, step_name):
                self.undone(run, life, last)
            self._undoing[run, life] = step_name
        self._newest[run, step_name] = life

    def undone(self, run: str, life: str, step_name: str) -> None:
        """A rollback is known to be done, by its last body that ended; it gives no result."""
        ended = [e.token for e in self.of(run, life, step_name) if e.end_s is not None]
        self._promises.hold("what is undone has been undone", bool(ended), run, step_name)
        if ended:
            self._steps[run, life, step_name].visible = ended[-1]

    def restarts_from(self, run: str, kept: Mapping[str, bool] | None) -> Mapping[str, bool] | None:
        """The newest life of a run keeps those steps of the first (True: they are there for
        certain); gives what held before."""
        before = self._kept.pop(run, None)
        if kept is not None:
            self._kept[run] = kept
        return before

    def end(self, token: int, now_s: float) -> None:
        """A body is about to return its token (or to raise an error that names it)."""
        self.executions[token - 1].end_s = now_s

    def of(self, run: str, life: str, step_name: str) -> list[Execution]:
        """All starts of a step in a life."""
        step = self._steps.get((run, life, step_name))
        return step.executions if step is not None else []

    def lives_of(self, run: str) -> list[str]:
        """The lives of a run in which a body began, oldest first."""
        return self._lives.get(run, [])

    def seen(self, run: str, results: Iterable[tuple[str, int]], life: str | None = None) -> None:
        """Results `(step, token)` that are visible now, in a life if one is given."""
        for step_name, token in results:
            self._see(run, step_name, token, life)

    def ran(self, run: str) -> bool:
        """Whether any body of a run ever began."""
        return run in self._lives

    def _see(self, run: str, step_name: str, token: int, life: str | None) -> None:
        execution = self.executions[token - 1] if 0 < token <= len(self.executions) else None
        hold = self._promises.hold
        if execution is None or (execution.run, execution.step) != (run, step_name):
            hold("recorded result never changes", False, run, step_name, token)
            return
        if life is not None:
            hold(
                "a life has results of its own",
                execution.life == life or step_name in self._kept.get(run, ()),
                f"{run} {step_name}: {token} is of {execution.life} and was seen in {life}",
            )
        step = self._steps[run, execution.life, step_name]
        if step.visible is not None:
            hold(
                "recorded result never changes",
                step.visible == token,
                f"{run} {step_name}: {step.visible} was visible, then {token}",
            )
            return
        step.visible = token
        hold(
            "recorded result is of a body that ended",
            execution.end_s is not None,
            f"{run} {step_name}: {token}",
        )
        newer = [
            e
            for e in step.executions
            if e.attempt > execution.attempt
            and execution.end_s is not None
            and e.start_s < execution.end_s
        ]
        hold(
            "a late result of an older attempt is refused",
            not newer,
            f"{run} {step_name}: the result of attempt {execution.attempt} counts although",
            f"attempt {newer[0].attempt if newer else 0} had begun before it came",
        )

    def ended_with(self, run: str, step_name: str, token: int) -> None:
        """The run's end tells that result: it is of the newest life that did the step."""
        self._see(run, step_name, token, self._newest.get((run, step_name)))


@dataclass
class Claim:
    """What clients were told of one instance."""

    account: str
    workflow: str
    id: str
    request_id: str = ""  # whose create was acknowledged
    params: bytes = b""
    acked: bool = False
    final: End = None
    last: str = ""
    version: str = ""
    part: int = 0  # of its script, as far as clients have seen
    carried: int = 0  # events that this part had from the ones before it
    restarts: int = 0  # how many were asked for
    is_restarting: bool = False

    def known(self) -> Known:
        """What is known now, for an answer to a question that is asked now."""
        return Known(self.final, self.part, -1 if self.is_restarting else self.restarts)


@dataclass(frozen=True)
class Known:
    """What was known of an instance when something was asked of it."""

    final: End
    part: int
    restarts: int


class Claims:
    """What clients were told, which must hold for ever."""

    def __init__(self, promises: Promises, bodies: Bodies) -> None:
        self._promises = promises
        self._bodies = bodies
        self.by_key: dict[tuple[str, str, str], Claim] = {}

    def of(self, account: str, workflow: str, instance_id: str) -> Claim:
        """The claim about an instance, made if there is none."""
        key = (account, workflow, instance_id)
        claim = self.by_key.get(key)
        if claim is None:
            claim = self.by_key[key] = Claim(*key)
        return claim

    @property
    def acknowledged(self) -> list[Claim]:
        """All instances that exist for all that clients know."""
        return [claim for claim in self.by_key.values() if claim.acked]

    def created(
        self, claim: Claim, request_id: str, params: bytes, view: Any, known: Known
    ) -> None:
        """A create was acknowledged; `known` as for `viewed`."""
        self._promises.hold(
            "one create wins an id",
            claim.request_id in ("", request_id),
            f"{claim.id}: {claim.request_id} and {request_id} were both told that they made it",
        )
        claim.request_id, claim.acked, claim.params = request_id, True, params
        self.viewed(claim, view, known)

    def refused_duplicate(self, claim: Claim, request_id: str) -> None:
        """A create was told that the id is taken."""
        self._promises.hold(
            "a repeated create gets the first answer",
            claim.request_id != request_id,
            f"{claim.id}: {request_id} made it and was told later that it exists already",
        )

    def missing(self, claim: Claim, was_acked: bool) -> None:
        """A client was told that there is no such instance."""
        self._promises.hold(
            "an acknowledged instance exists",
            not was_acked,
            f"{claim.account} {claim.workflow} {claim.id} was acknowledged and is gone",
        )

    def viewed(self, claim: Claim, view: Any, known: Known) -> None:
        """A client was shown the instance; `known` is what was known when it asked."""
        claim.last = view.status
        if claim.acked:
            self._check_params(claim, view, known)
            claim.version = claim.version or view.version_id
            self._promises.hold(
                "an instance keeps its version",
                claim.version == view.version_id,
                f"{claim.id}: {view.version_id}, it was made with {claim.version}",
            )
        if claim.is_restarting or claim.restarts != known.restarts:
            return  # the end may be of the life before
        end = (view.status, view.output)
        if known.final is not None:
            self._promises.hold(
                "an end that was seen stays",
                known.final == end,
                f"{claim.id}: was {known.final}, is {end}",
            )
        if claim.final is None and view.status in FINAL:
            claim.final = end

    def _check_params(self, claim: Claim, view: Any, known: Known) -> None:
        """They stay as they are, but that a run may have continued with those of its next part."""
        hold, told = self._promises.hold, f"{claim.id}: {view.params!r} for {claim.params!r}"
        if view.params == claim.params:
            hold("an instance keeps its params", known.part == 0, told)
            return
        first, given = decode_json(claim.params), decode_json(view.params)
        part = given["part"]
        parts = [first["ops"], *first["then"]]
        fits = 0 < part < len(parts) and [given["ops"], *given["then"]] == parts[part:]
        hold("an instance keeps its params", fits and given["run"] == first["run"], told)
        hold("a run that has continued never goes back", part >= known.part, told)
        claim.part = max(claim.part, part)
        claim.carried = max(claim.carried, len(given["carried"]["events"]))

    def restarting(self, claim: Claim) -> None:
        """A restart is about to be asked for: from here on no end is known."""
        claim.final = None
        claim.restarts += 1
        claim.is_restarting = True

    def restarted(self, claim: Claim) -> None:
        """It was answered."""
        claim.is_restarting = False
