"""Drives an `Execution` by hand: bodies end when the test says so, time moves when it says so.

Records pass through their encoded form, so a replay sees what a store would give back.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from toque.engines.claims import Claim
from toque.engines.failures import RecordedError, record_of
from toque.engines.journal import Journal, Record, record_from_row
from toque.engines.replay import Execution
from toque.engines.step import WorkflowStep
from toque.runtime.codec import decode_json, encode_json

START_MS = 1_000_000
Run = Callable[[WorkflowStep], Coroutine[Any, Any, Any]]


class Play:
    """One instance of `run(step)`; `options` are those of `Execution`.

    Attributes:
        rows: what has been written, by ordinal, encoded.
        bodies: attempts that were started and have not ended, by public name.
        asked: delay functions that are to be asked.
    """

    def __init__(self, run: Run, **options: Any) -> None:
        self.run = run
        self.options = options
        self.rows: dict[int, Any] = {}
        self.started_ms = self.now_ms = START_MS
        self.events: dict[int, bytes] = {}
        self.sent: dict[int, tuple[str, int]] = {}
        self.history: list[dict[int, Any]] = []
        self._begin(Journal())

    def _begin(self, journal: Journal) -> None:
        self.bodies: dict[str, tuple[Claim, int]] = {}
        self.asked: dict[str, tuple[Claim, int]] = {}
        self.stopped: list[str] = []
        self.execution = Execution(
            journal, 7, "workflow 'test'", self.events.__getitem__, **self.options
        )
        step = WorkflowStep(self.execution)
        for seq in self.events:
            self.execution.buffer_event(seq, *self.sent[seq])
        self.execution.begin(self.run(step), self.started_ms, self.now_ms)
        self._take()

    def _take(self) -> None:
        execution = self.execution
        for record in execution.dirty.values():
            self.rows[record.ordinal] = record.row("e")
        if execution.dirty:
            self.history.append(dict(self.rows))
        execution.dirty.clear()
        for claim, attempt in execution.starts:
            where = self.asked if claim.record.error else self.bodies
            where[claim.record.public_name] = claim, attempt
        execution.starts.clear()
        for ordinal in execution.stops:
            self.stopped.append(execution.journal.records[ordinal - 1].public_name)
        execution.stops.clear()
        for seq in execution.consumed:
            del self.events[seq]
        execution.consumed.clear()

    # --- acts -------------------------------------------------------------------------------

    def finish(self, name: str, value: Any = None) -> bool:
        """The body's current attempt returns."""
        claim, attempt = self.bodies.pop(name)
        return self.late(claim, attempt, value)

    def late(self, claim: Claim, attempt: int, value: Any = None) -> bool:
        """Some attempt returns."""
        raw = encode_json(value)
        taken = self.execution.body_done(claim, attempt, None, raw, self.now_ms)
        self._take()
        return taken

    def fail(self, name: str, error: BaseException) -> bool:
        """The body's current attempt raises."""
        claim, attempt = self.bodies.pop(name)
        taken = self.execution.body_done(claim, attempt, record_of(error), None, self.now_ms)
        self._take()
        return taken

    def tell(self, name: str, delay_ms: int, problem: RecordedError | None = None) -> bool:
        """The step's delay function answers."""
        claim, attempt = self.asked.pop(name)
        taken = self.execution.delay_told(claim, attempt, delay_ms, problem, self.now_ms)
        self._take()
        return taken

    def advance(self, by_ms: int) -> None:
        """Time passes; what falls due is delivered, each at its own time."""
        until = self.now_ms + by_ms
        while True:
            due = self.execution.next_due_ms()
            if not due or due > until or self.execution.outcome is not None:
                break
            self.now_ms = max(self.now_ms, due)
            self.execution.tick(self.now_ms)
            self._take()
        self.now_ms = until

    def skip(self, by_ms: int) -> None:
        """Time passes and nobody looks."""
        self.now_ms += by_ms

    def look(self) -> None:
        """What is due or has come is delivered."""
        self.execution.tick(self.now_ms)
        self._take()

    def send(self, event_type: str, payload: Any = None) -> None:
        """An event arrives; `look` delivers it."""
        seq = len(self.sent) + 1
        self.events[seq] = encode_json(payload)
        self.sent[seq] = event_type, self.now_ms
        self.execution.buffer_event(seq, event_type, self.now_ms)

    def replay(self, run: Run | None = None, rows: dict[int, Any] | None = None) -> Play:
        """Crash, and go on from what was written (or from `rows`), perhaps with other code."""
        self.execution.close()
        self.run = run or self.run
        self.rows = dict(self.rows if rows is None else rows)
        self._begin(Journal.of(record_from_row(self.rows[n]) for n in sorted(self.rows)))
        return self

    def close(self) -> None:
        """Drop it."""
        self.execution.close()

    # --- what came of it --------------------------------------------------------------------

    @property
    def records(self) -> list[Record]:
        """The journal as the execution has it."""
        return self.execution.journal.records

    @property
    def output(self) -> Any:
        """The result of `run`, which must have ended well."""
        outcome = self.execution.outcome
        assert outcome is not None, f"run waits for {sorted(self.bodies)}"
        assert outcome.error is None, outcome.error
        return decode_json(outcome.output or b"null")

    @property
    def error(self) -> tuple[str, str]:
        """Name and message of the error that ended `run`."""
        outcome = self.execution.outcome
        assert outcome is not None, f"run waits for {sorted(self.bodies)}"
        assert outcome.error is not None, outcome.output
        return outcome.error.name, outcome.error.message

    @property
    def idents(self) -> list[str]:
        """Identities of all records, in order."""
        return [record.ident for record in self.records]
