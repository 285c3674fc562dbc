"""What a test holds of one instance: it acts and looks, and virtual time passes meanwhile.

All block, and none takes real time; in an `async def` test they are called the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..api.client_instance import Instance, check_success
from ..api.client_values import InstanceError, InstanceStatus, StepStatus
from ..api.watched import InstanceEvent, Waiting
from ..engines.durations import Duration
from .bodies import Execution
from .histories import History

if TYPE_CHECKING:
    from ..api.changes import FromStep
    from .simulation import Simulation

T = TypeVar("T")


@dataclass(frozen=True)
class SimStep:
    """A step, sleep or wait of an instance.

    Attributes:
        name: its public name, such as `charge-1`.
        type: `step`, `sleep`, `waitForEvent`, `rollback` or `termination`.
        state: `open`, `complete` or `errored`.
        attempts: how many there were, interrupted ones too; 0: it has none, or none yet.
        interruptions: attempts that a crash cut off.
        output: what it gave; `error`: why it failed, for good or last.
        shown: all that the API tells of it.
    """

    name: str
    type: str
    state: str
    attempts: int
    interruptions: int
    output: Any
    error: InstanceError | None
    shown: StepStatus


class SimSteps(Mapping[str, SimStep]):
    """Steps by public name, in the order in which they began; `charge` is `charge-1` as well."""

    def __init__(self, steps: list[SimStep]) -> None:
        self._steps = {step.name: step for step in steps}

    def __getitem__(self, name: str) -> SimStep:
        found = self._steps.get(name) or self._steps.get(f"{name}-1")
        if found is None:
            known = ", ".join(self._steps) or "none"
            raise KeyError(f"there is no step {name!r} so far; known are {known}")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._steps or f"{name}-1" in self._steps

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        told = (f"{s.name}: {s.state}, {s.attempts} attempts" for s in self._steps.values())
        return f"SimSteps({'; '.join(told)})"


class SimInstance:
    """An instance in a simulation.

    Attributes:
        workflow, id: which.
    """

    def __init__(self, sim: Simulation, workflow: str, id: str) -> None:
        self._sim = sim
        self.workflow = workflow
        self.id = id

    def __repr__(self) -> str:
        return f"SimInstance({self.workflow!r}, {self.id!r})"

    @property
    def _client_side(self) -> Instance:
        return self._sim.client.instance(self.workflow, self.id)

    # --- looking ----------------------------------------------------------------------------

    def status(self) -> InstanceStatus:
        """How it stands, with its steps, as the client shows it."""
        return self._sim.ask(lambda _: self._client_side.status())

    def steps(self) -> SimSteps:
        """Its steps by name: `order.steps()["charge"].attempts`."""
        return SimSteps([_step(shown) for shown in self.status().steps])

    def events(self) -> list[InstanceEvent]:
        """What has happened to it so far."""

        async def gather() -> list[InstanceEvent]:
            return [event async for event in self._client_side.events(follow=False)]

        return self._sim.ask(lambda _: gather())

    def why(self) -> Waiting:
        """Why it does not go on."""
        return self._sim.ask(lambda _: self._client_side.why())

    def executions(self, step: str | None = None) -> list[Execution]:
        """Which bodies of it ran, oldest first; of one step only, if it is named."""
        return [e for e in self._sim.executions(step, self.workflow) if e.instance == self.id]

    def history(self) -> History:
        """Its journal so far, for `check_replay`: as `histories` reads it of a data directory."""
        return self._sim.history_of(self)

    def wait(self, within: Duration | None = None) -> InstanceStatus:
        """Let time pass until it has ended, however it ends.

        Args:
            within: virtual time that may pass; None: two years, or 20,000 commits.

        Raises:
            WaitsForever: it had not ended then; the text says what it waits for.
        """
        self._sim.wait_for_end(self, within)
        return self.status()

    @overload
    def result(self, *, within: Duration | None = None) -> Any: ...

    @overload
    def result(self, expected: type[T], *, within: Duration | None = None) -> T: ...

    def result(self, expected: Any = Any, *, within: Duration | None = None) -> Any:
        """Let time pass until it has ended; what `run` returned, as a type, if one is given.

        Raises:
            InstanceFailed: it ended errored or terminated.
            WaitsForever: see `wait`.
            PayloadMismatch: its output does not fit the type.
        """
        status = check_success(self.wait(within))
        return status.output if expected is Any else status.output_as(expected)

    # --- acting -----------------------------------------------------------------------------

    def send_event(self, event_type: str, payload: Any = None) -> None:
        """Send it an event; it is buffered if nobody waits for it yet."""
        self._sim.ask(lambda key: self._client_side.send_event(event_type, payload, request_id=key))

    def pause(self) -> None:
        """See `Instance.pause` of the client, as for all that follow."""
        self._sim.ask(lambda key: self._client_side.pause(request_id=key))

    def resume(self) -> None:
        """Have it go on after a pause."""
        self._sim.ask(lambda key: self._client_side.resume(request_id=key))

    def cancel(self) -> None:
        """Raise `asyncio.CancelledError` in it."""
        self._sim.ask(lambda key: self._client_side.cancel(request_id=key))

    def terminate(self, *, rollback: bool = False) -> None:
        """End it at once; with `rollback`, undo what its steps did."""
        self._sim.ask(lambda key: self._client_side.terminate(rollback=rollback, request_id=key))

    def restart(self, *, from_step: FromStep | None = None) -> None:
        """Have it begin again, from a step if one is named."""
        self._sim.ask(lambda key: self._client_side.restart(from_step=from_step, request_id=key))

    def delete(self) -> None:
        """Remove it."""
        self._sim.ask(lambda key: self._client_side.delete(request_id=key))


def _step(shown: StepStatus) -> SimStep:
    is_over = shown.finished if shown.finished is not None else shown.success is not None
    state = "open"
    if is_over:
        state = "errored" if shown.success is False or shown.error is not None else "complete"
    return SimStep(
        shown.name,
        shown.type,
        state,
        max(shown.attempts_total, len(shown.attempts)),
        shown.interruptions,
        shown.output,
        shown.error,
        shown,
    )
