"""The promises that a run must keep, each with a count of how often it was looked at.

Bodies of steps report their starts and ends to `Bodies`, clients what they were told to
`Claims`. Neither knows how the system works inside. What is on disk is judged in `disk`.

A step's result is *visible* once something that depends on it has happened: a later body of the
run began, a client read it, the instance ended. From then on it is final.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

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
    """One start of a step's body."""

    token: int
    run: str
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

    Args:
        promises: where checks are counted.
    """

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._steps: dict[tuple[str, str], _Step] = {}
        self._runs: set[str] = set()
        self.executions: list[Execution] = []

    def begin(
        self,
        execution_of: tuple[str, str, int],
        process: str,
        now_s: float,
        once: bool,
        *,
        fenced: bool = False,
    ) -> int:
        """A body starts; gives its token, which is its result.

        A process that hung after an attempt was made durable, and wakes when another owner has
        repeated it, begins that attempt late: no check on its side can be quick enough.
        """
        run, step_name, attempt = execution_of
        self._runs.add(run)
        step = self._steps.setdefault((run, step_name), _Step())
        known = [e.attempt for e in step.executions]
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
        execution = Execution(token, run, step_name, attempt, process, now_s)
        self.executions.append(execution)
        step.executions.append(execution)
        return token

    def end(self, token: int, now_s: float) -> None:
        """A body is about to return its token (or to raise an error that names it)."""
        self.executions[token - 1].end_s = now_s

    def seen(self, run: str, results: Iterable[tuple[str, int]]) -> None:
        """Results `(step, token)` that are visible now."""
        for step_name, token in results:
            self._see(run, step_name, token)

    def ran(self, run: str) -> bool:
        """Whether any body of a run ever began."""
        return run in self._runs

    def _see(self, run: str, step_name: str, token: int) -> None:
        step = self._steps.get((run, step_name))
        execution = self.executions[token - 1] if 0 < token <= len(self.executions) else None
        if step is None or execution is None or execution not in step.executions:
            self._promises.hold("recorded result never changes", False, run, step_name, token)
            return
        if step.visible is not None:
            self._promises.hold(
                "recorded result never changes",
                step.visible == token,
                f"{run} {step_name}: {step.visible} was visible, then {token}",
            )
            return
        step.visible = token
        self._promises.hold(
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
        self._promises.hold(
            "a late result of an older attempt is refused",
            not newer,
            f"{run} {step_name}: the result of attempt {execution.attempt} counts although",
            f"attempt {newer[0].attempt if newer else 0} had begun before it came",
        )


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

    def created(self, claim: Claim, request_id: str, params: bytes, view: Any, known: End) -> None:
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

    def viewed(self, claim: Claim, view: Any, known: End) -> None:
        """A client was shown the instance; when it asked, the end `known` had been seen."""
        claim.last = view.status
        if claim.acked:
            self._promises.hold(
                "an instance keeps its params",
                view.params == claim.params,
                f"{claim.id}: {view.params!r} for {claim.params!r}",
            )
        if known is not None:
            self._promises.hold(
                "an end that was seen stays",
                known == (view.status, view.output),
                f"{claim.id}: was {known}, is {(view.status, view.output)}",
            )
        if claim.final is None and view.status in FINAL:
            claim.final = (view.status, view.output)
