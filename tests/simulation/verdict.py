"""What is asked for, and whether what came of it is right.

An errand is one instance that clients want: its program, the events that it is sent, and what
may befall it. When it has ended, `judge` holds its end against the program, the executions of
its bodies and the events that were acknowledged.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from toque.runtime.codec import decode_json

from .program import EVENT_TYPES, Op, lengths_of, steps_of
from .promises import Bodies, Claim, Promises


class Errand:
    """One instance that clients want.

    Args:
        claim: what they know of it.
        programs: what each create asks to run (several, if one id is created twice).
    """

    def __init__(
        self, claim: Claim, programs: list[list[Op]], promises: Promises, bodies: Bodies
    ) -> None:
        self.claim = claim
        self.id = claim.id
        self.programs = programs
        self.sent: dict[str, list[int | None]] = {kind: [] for kind in EVENT_TYPES}
        self.may_be_terminated = False
        self._promises = promises
        self._bodies = bodies

    def run_name(self, request: int) -> str:
        """Names what a create asks to run, in reports of bodies."""
        claim = self.claim
        return f"{claim.account}/{claim.workflow}/{self.id}#{request}"

    def params(self, request: int) -> dict[str, Any]:
        """The params of a create."""
        return {"run": self.run_name(request), "ops": self.programs[request]}

    @property
    def winner(self) -> int:
        """Which create made the instance."""
        made_by = self.claim.request_id
        return 0 if "#" in made_by else int(made_by.rsplit("-", 1)[1])

    def saw_steps(self, view: Any) -> None:
        """A client saw the steps' results: from now on they are final."""
        if not self.claim.acked:
            return
        run = self.run_name(self.winner)
        for step in view.steps:
            if step.type == "step" and step.success and step.output is not None:
                name = step.name.rsplit("-", 1)[0]
                self._bodies.seen(run, [(name, int(decode_json(step.output)))])

    def judge(self, view: Any, *, true_clocks: bool = True) -> None:
        """The instance has ended: is that how it had to end?

        `true_clocks`: no clock was set meanwhile, so that recorded times can be compared.
        """
        hold, claim = self._promises.hold, self.claim
        hold("an acknowledged create ends", view.status in _ENDS, self.id, view.status)
        for request in range(len(self.programs)):
            if request != self.winner:
                hold(
                    "a create that was refused runs nothing",
                    not self._bodies.ran(self.run_name(request)),
                    self.run_name(request),
                )
        if view.status == "terminated":
            hold("only who asks for it is terminated", self.may_be_terminated, self.id)
            return
        hold(
            "a program ends as it must",
            view.status == "complete",
            f"{self.id}: {view.status} {view.error} {view.params!r}",
        )
        if view.status == "complete":
            hold("an end has its output", claim.final is not None and view.output is not None)
            self._judge_output(decode_json(view.output))
            self._judge_events(decode_json(view.output)["events"])
            if true_clocks:
                self._judge_timeouts(view)
                self._judge_sleeps(view)

    def _judge_output(self, output: dict[str, Any]) -> None:
        run = self.run_name(self.winner)
        hold = self._promises.hold
        results: dict[str, int] = dict(output["seen"])
        hold("a step has one result", len(results) == len(output["seen"]), run, output["seen"])
        self._bodies.seen(run, [(name, token) for name, token in results.items() if token])
        for name, mode in steps_of(self.programs[self.winner]).items():
            token = results.get(name)
            hold("every step has run", token is not None, f"{run} {name}: {output}")
            if token is not None and mode != "once":
                hold("a step has a result of a body", token > 0, f"{run} {name} {mode}")

    def _judge_events(self, received: list[Any]) -> None:
        """Each acknowledged event once, in order, and to whoever waited in time."""
        hold = self._promises.hold
        taken: Counter[str] = Counter()
        for kind, payload in received:
            if payload is not None:
                hold(
                    "events arrive once and in order",
                    payload == taken[kind],
                    f"{self.id} {kind}: {payload} came after {taken[kind]} others: {received}",
                )
                taken[kind] += 1
        for kind in EVENT_TYPES:
            hold(
                "no event is made up",
                taken[kind] <= len(self.sent[kind]),
                f"{self.id} {kind}: {received} of {self.sent[kind]}",
            )

    def _judge_timeouts(self, view: Any) -> None:
        """A wait that timed out had nothing to take: what came before its deadline was taken."""
        timeouts = lengths_of(self.programs[self.winner], "event")
        waits = [step for step in view.steps if step.type == "waitForEvent"]
        for wait in waits:
            if wait.error is None or wait.error.name != "EventTimeout":
                continue
            deadline_ms = wait.start_ms + timeouts[wait.name.rsplit("-", 1)[0]]
            taken = [
                other
                for other in waits
                if other.event_type == wait.event_type
                and other.success
                and other.end_ms <= wait.end_ms
            ]
            sent = self.sent[wait.event_type]
            waiting = [at for at in sent[len(taken) :] if at is not None and at < deadline_ms]
            self._promises.hold(
                "an event that is there is taken",
                not waiting,
                f"{self.id} {wait.name} timed out, its deadline was {deadline_ms}, {len(taken)}",
                f"had been taken of {sent}",
            )

    def _judge_sleeps(self, view: Any) -> None:
        """No sleep ended early."""
        lengths = lengths_of(self.programs[self.winner], "sleep")
        for step in view.steps:
            if step.type == "sleep" and step.success:
                length_ms = lengths.get(step.name.rsplit("-", 1)[0], 0)
                self._promises.hold(
                    "a sleep is never short",
                    step.end_ms - step.start_ms >= length_ms,
                    f"{self.id} {step.name}: {step.start_ms} to {step.end_ms}, not {length_ms} ms",
                )


_ENDS = ("complete", "errored", "terminated")
