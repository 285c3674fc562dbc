"""What is asked for, and whether what came of it is right.

An errand is one instance that clients want: its script, the events that it is sent, and what
may befall it. When it has ended, `judge` holds its end against the script, the executions of
its bodies and the events that were acknowledged.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from toque.runtime.codec import decode_json
from toque.runtime.limits import STEP_INTERRUPTIONS_MAX

from .making import Script, forks_of, lengths_of, shields_of, steps_of
from .program import CLEANUP, DOOM, EVENT_TYPES, HAS_UNDO, MAY_FAIL, undo_name
from .promises import FINAL, Bodies, Claim, Promises

UNDO_TYPE = "rollback"
_SHOWN_TO_NOBODY = b'"[REDACTED]"'


class Errand:
    """One instance that clients want.

    Args:
        claim: what they know of it.
        scripts: what each create asks to run (several, if one id is created twice).

    Attributes:
        sent: by type, when each event was taken; None: not known to have been.
        may_be_terminated, may_be_cancelled: somebody asks for it.
        fork: the step that it is restarted from, if it ever is.
        drops: restarts from the start, which drop the events that are not taken; but never the
            first so many, which its run had from the one before it when that was asked for.
    """

    def __init__(
        self, claim: Claim, scripts: list[Script], promises: Promises, bodies: Bodies
    ) -> None:
        self.claim = claim
        self.id = claim.id
        self.scripts = scripts
        self.sent: dict[str, list[int | None]] = {kind: [] for kind in EVENT_TYPES}
        self.may_be_terminated = False
        self.may_be_cancelled = False
        self.fork = ""
        self.drops: list[int] = []
        self._run_ids: set[str] = set()
        self._promises = promises
        self._bodies = bodies

    def run_name(self, request: int) -> str:
        """Names what a create asks to run, in reports of bodies."""
        claim = self.claim
        return f"{claim.account}/{claim.workflow}/{self.id}#{request}"

    def params(self, request: int) -> dict[str, Any]:
        """The params of a create."""
        return self.scripts[request].params(self.run_name(request))

    @property
    def winner(self) -> int:
        """Which create made the instance."""
        made_by = self.claim.request_id
        return 0 if "#" in made_by else int(made_by.rsplit("-", 1)[1])

    @property
    def run(self) -> str:
        """The run that the winner asked for."""
        return self.run_name(self.winner)

    @property
    def script(self) -> Script:
        """Its script."""
        return self.scripts[self.winner]

    def kept_by(self, fork: str) -> dict[str, bool]:
        """The steps that a restart from that step keeps."""
        return dict(forks_of(self.script))[fork]

    def saw_steps(self, view: Any) -> None:
        """A client saw the steps' results: from now on they are final."""
        if not self.claim.acked:
            return
        self._run_ids.add(view.run_id)
        modes = {**steps_of(self.script.ops, certain=False), CLEANUP: "ok"}
        for step in view.steps:
            name = _plain(step)
            if step.type == UNDO_TYPE and step.success:
                self._bodies.undone(self.run, view.run_id, undo_name(name))
            if step.type != "step" or not step.success or step.output is None:
                continue
            mode = modes[name]
            if mode == "secret":
                self._promises.hold(
                    "a sensitive output is shown to nobody",
                    step.output == _SHOWN_TO_NOBODY,
                    f"{self.run} {name}: {step.output!r}",
                )
            elif mode != "stream":
                found = decode_json(step.output)
                token = found[0] if isinstance(found, list) else found
                self._bodies.seen(self.run, [(name, int(token))], view.run_id)

    # --- the end ----------------------------------------------------------------------------

    def judge(self, view: Any, *, true_clocks: bool = True) -> None:
        """The instance has ended: is that how it had to end?

        `true_clocks`: no clock was set meanwhile, so that recorded times can be compared.
        """
        hold = self._promises.hold
        hold("an acknowledged create ends", view.status in FINAL, self.id, view.status)
        for request in range(len(self.scripts)):
            if request != self.winner:
                hold(
                    "a create that was refused runs nothing",
                    not self._bodies.ran(self.run_name(request)),
                    self.run_name(request),
                )
        self._judge_lives()
        self._judge_rollback(view)
        if view.status == "terminated":
            self._judge_terminated(view)
            return
        doomed = self.script.doomed
        hold(
            "a program ends as it must",
            (
                (view.status == ("errored" if doomed else "complete"))
                and (view.error.name == DOOM if doomed else view.error is None)
            )
            or self._is_cut_off(view),
            f"{self.id}: {view.status} {view.error} {view.params!r}",
        )
        if view.status == "complete":
            hold("an end has its output", self.claim.final is not None and view.output is not None)
            output = decode_json(view.output)
            self._judge_output(view, output["seen"])
            self._judge_events(output["events"])
        elif view.status == "errored" and view.error.data:
            self._judge_output(view, decode_json(view.error.data)["seen"])
        if true_clocks:
            self._judge_timeouts(view)
            self._judge_sleeps(view)

    def _is_cut_off(self, view: Any) -> bool:
        """Whether attempts of a step were cut off so often that toque gave it up: one shard after
        the other found its disk full, say."""
        if view.error is None or view.error.name != "StepInterrupted":
            return False
        for step in view.steps:
            begun = self._bodies.of(self.run, view.run_id, _plain(step))
            if sum(body.end_s is None for body in begun) > STEP_INTERRUPTIONS_MAX:
                return True
        return False

    def _judge_lives(self) -> None:
        """Each restart that was asked for, and each continuation, made one life at most."""
        lives = self._run_ids | set(self._bodies.lives_of(self.run))
        self._promises.hold(
            "a restart takes effect once",
            len(lives) <= len(self.script.parts) + self.claim.restarts,
            f"{self.run}: {len(lives)} lives, {self.claim.restarts} restarts",
        )

    def _judge_terminated(self, view: Any) -> None:
        hold = self._promises.hold
        if view.error is None or view.error.name != "Cancelled":
            hold("only who asks for it is terminated", self.may_be_terminated, self.id)
            return
        hold("only who asks for it is cancelled", self.may_be_cancelled, self.id)
        done = {_plain(step) for step in view.steps if step.type == "step" and step.finished}
        begun = {_plain(step) for step in view.steps if step.type == "step"}
        for names in shields_of(self.script.ops):
            if begun.intersection(names):
                hold(
                    "what is shielded is done though the run is cancelled",
                    done.issuperset(names),
                    f"{self.run}: of {names} only {sorted(done.intersection(names))}",
                )
        if self.script.cleanup and view.started_ms is not None:
            hold("a cancelled run cleans up", CLEANUP in done, self.run, sorted(begun))

    def _judge_rollback(self, view: Any) -> None:
        """Who fails undoes what it did, newest first, each once, one after the other."""
        hold = self._promises.hold
        modes = steps_of(self.script.ops, certain=False)
        undone = [_plain(step) for step in view.steps if step.type == UNDO_TYPE]
        did = [
            _plain(step)
            for step in view.steps
            if step.type == "step" and modes.get(_plain(step)) in HAS_UNDO and step.attempts_total
        ]
        if view.status == "complete" or view.rollback is None:
            hold("only who fails undoes what it did", not undone, self.run, undone)
            if view.status == "errored":
                hold("who fails undoes what it did", not did, self.run, did)
            return
        is_complete = view.rollback.outcome == "complete"
        may_be_cut = self.may_be_terminated  # a second terminate ends a rollback
        hold("a rollback ends well", is_complete or may_be_cut, self.run, view.rollback)
        expected = did[::-1] if is_complete else did[::-1][: len(undone)]
        hold("who fails undoes what it did", undone == expected, self.run, did, "undone", undone)
        last_s = 0.0
        for name in undone:
            starts = self._bodies.of(self.run, view.run_id, undo_name(name))
            ends = [e.end_s for e in starts if e.end_s is not None]
            hold(
                "rollbacks run one after the other",
                not starts or starts[0].start_s >= last_s,
                f"{self.run} {name}",
            )
            last_s = min(ends, default=last_s)  # a process that hung may end an attempt late

    def _judge_output(self, view: Any, seen: list[Any]) -> None:
        run = self.run
        hold = self._promises.hold
        results: dict[str, int] = dict(seen)
        hold("a step has one result", len(results) == len(seen), run, seen)
        for name, token in results.items():
            if token:
                self._bodies.ended_with(run, name, token)
        for name, mode in steps_of(self.script.ops).items():
            token = results.get(name)
            hold("every step has run", token is not None, f"{run} {name}: {seen}")
            if token is not None and mode not in ("once", "overdue"):
                hold("a step has a result of a body", token > 0, f"{run} {name} {mode}")
        for step in view.steps:
            mode = steps_of(self.script.ops, certain=False).get(_plain(step), "")
            if step.type == "step" and step.finished and mode:
                hold(
                    "a step ends as it must",
                    mode in ("once",) or step.success is (mode not in MAY_FAIL),
                    f"{run} {step.name}: {step.success} {step.error}",
                )

    def _judge_events(self, received: list[Any]) -> None:
        """Each acknowledged event once, in order, and to whoever waited in time.

        A restart from the start drops what no wait has taken: of each kind some that follow each
        other, behind those that the run had got as its params.
        """
        hold = self._promises.hold
        after: dict[str, int] = dict.fromkeys(EVENT_TYPES, -1)
        gaps: dict[str, int] = dict.fromkeys(EVENT_TYPES, len(self.drops))
        for place, (kind, payload) in enumerate(received):
            if payload is None:
                continue
            last = after[kind]
            is_gap = payload > last + 1 and (last < 0 or place >= min(self.drops, default=0))
            gaps[kind] -= is_gap
            hold(
                "events arrive once and in order",
                gaps[kind] >= 0 if is_gap else payload == last + 1,
                f"{self.id} {kind}: {payload} came after {last}: {received}",
            )
            after[kind] = payload
        for kind in EVENT_TYPES:
            hold(
                "no event is made up",
                max(after[kind], 0) < max(1, len(self.sent[kind])),
                f"{self.id} {kind}: {received} of {self.sent[kind]}",
            )

    def _judge_timeouts(self, view: Any) -> None:
        """A wait that timed out had nothing to take: what came before its deadline was taken."""
        if self.drops:
            return
        timeouts = lengths_of(self.script.ops, "event", "take")
        carried = decode_json(view.params)["carried"]["events"]
        before = Counter(kind for kind, payload in carried if payload is not None)
        waits = [step for step in view.steps if step.type == "waitForEvent"]
        for wait in waits:
            if wait.error is None or wait.error.name != "EventTimeout":
                continue
            deadline_ms = wait.start_ms + timeouts[_plain(wait)]
            taken = [
                other
                for other in waits
                if other.event_type == wait.event_type
                and other.success
                and other.end_ms <= wait.end_ms
            ]
            sent = self.sent[wait.event_type]
            left = sent[before[wait.event_type] + len(taken) :]
            waiting = [at for at in left if at is not None and at < deadline_ms]
            self._promises.hold(
                "an event that is there is taken",
                not waiting,
                f"{self.id} {wait.name} timed out, its deadline was {deadline_ms}, {len(taken)}",
                f"had been taken of {sent}",
            )

    def _judge_sleeps(self, view: Any) -> None:
        """No sleep ended early."""
        lengths = lengths_of(self.script.ops, "sleep")
        for step in view.steps:
            if step.type == "sleep" and step.success:
                length_ms = lengths.get(_plain(step), 0)
                self._promises.hold(
                    "a sleep is never short",
                    step.end_ms - step.start_ms >= length_ms,
                    f"{self.id} {step.name}: {step.start_ms} to {step.end_ms}, not {length_ms} ms",
                )


def _plain(step: Any) -> str:
    """A step's name in its script."""
    name: str = step.name.rsplit("-", 1)[0]
    return name.removeprefix("rollback ")
