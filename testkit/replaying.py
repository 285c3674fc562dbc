"""Replays the history of an instance on today's code: may it be deployed under that instance?

`run` is executed up to where the journal ends, with the recorded results; no body runs and nothing
is written. What it would do next is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..engines.code_host import InProcessCodeHost
from ..engines.failures import NonDeterminism, RecordedError
from ..engines.journal import DO, HIDDEN, UNDO, Record
from ..engines.run_port import Run, RunHooks, Turn
from ..engines.workflow import WorkflowDefinition, definition_of
from ..runtime.codec import decode_json
from ..runtime.errors import InvalidArgument
from ..runtime.guarded import shown
from .errors import ReplayFails
from .histories import History
from .skipping import SkippingLoop


@dataclass(frozen=True)
class Replay:
    """A replay that went well.

    Attributes:
        repeated: how many steps, sleeps and waits of the journal were repeated.
        begins: public names of those that `run` comes to next and that are not in the journal.
        ended: `complete` or `errored`, if `run` has ended; else None.
        output: what it returned, if so.
    """

    repeated: int
    begins: tuple[str, ...] = ()
    ended: str | None = None
    output: Any = None


def check_replay(history: History, workflow: Any) -> Replay:
    """Replay a history on a workflow class or function.

    Args:
        history: from `histories`, `SimInstance.history` or `History.load`.
        workflow: today's code of it, whatever it is named.

    Raises:
        NonDeterminism: `run` takes another way than the journal; the text has both sides. On a
            server the instance would end with that error, or wait for its old code.
        ReplayFails: `run` repeats the journal and then ends at once with an error; or it ends
            otherwise than an instance that has ended.
    """
    if not isinstance(history, History):
        raise InvalidArgument(
            f"the history is {shown(history)}; it must be a History. Right: "
            "check_replay(History.load('order-1.json'), Order)."
        )
    turn = _replayed(history, definition_of(workflow))
    return _judged(history, turn)


def _replayed(history: History, definition: WorkflowDefinition) -> Turn:
    loop = SkippingLoop()
    plan = history.copied().plan  # a replay changes the records that it is given
    plan.class_name = ""
    if history.is_finished:  # its rollback, if it had one, is no part of what `run` does
        plan.records = [record for record in plan.records if record.kind != UNDO]
    turns: list[Turn] = []
    lost: list[Exception] = []
    done = loop.create_future()

    def turned(run: Run, turn: Turn) -> None:
        turns.append(turn)
        done.set_result(None)

    def failed(run: Run, error: Exception) -> None:
        lost.append(error)
        done.set_result(None)

    hooks = RunHooks(turned, failed, history.payloads.__getitem__, lambda: plan.now_ms)
    named = definition.named(history.workflow)
    host = InProcessCodeHost(loop, [named], inline=True)
    run = host.open(plan, hooks)
    try:
        turn = run.begin()
        if turn is None:  # a long one is replayed in slices
            loop.run_until_complete(done)
            if lost:
                raise lost[0]
            turn = turns[0]
        return turn
    finally:
        run.close()
        host.close()
        loop.close()


def _judged(history: History, turn: Turn) -> Replay:
    recorded = [record for record in history.plan.records if record.kind not in HIDDEN]
    known = {record.ordinal for record in history.plan.records}
    begins = tuple(_begun(turn.records, known))
    outcome = turn.outcome
    if outcome is None:
        if history.is_finished and history.status == "complete":
            raise ReplayFails(
                f"{_whose(history)} is complete, and today's code does not come to an end: it goes "
                f"on with {', '.join(begins) or 'nothing'}."
            )
        return Replay(len(recorded), begins)
    error = outcome.error
    if error is not None and error.name == NonDeterminism.__name__:
        raise NonDeterminism(f"{_whose(history)}: {error.message}")
    was_stopped = history.status == "terminated"  # from outside: how `run` ends says nothing
    if error is not None:
        if not was_stopped:
            _check_error(history, error)
        return Replay(len(recorded), begins, "errored")
    if history.is_finished and not was_stopped:
        _check_output(history, outcome.output)
    output = None if outcome.output is None else decode_json(outcome.output)
    return Replay(len(recorded), begins, "complete", output)


def _begun(records: list[Record], known: set[int]) -> list[str]:
    new = [r for r in records if r.ordinal not in known and r.kind not in HIDDEN]
    return [f"{'step' if r.kind == DO else r.kind} {r.public_name}" for r in new]


def _check_error(history: History, error: RecordedError) -> None:
    if error.name == history.error:
        return
    before = f"It is {history.status}" if history.is_finished else "It has not ended yet"
    more = f", with {history.error}" if history.error else ""
    raise ReplayFails(
        f"{_whose(history)}: today's code repeats the journal and then ends with {error.name}: "
        f"{error.message.rstrip('.')}. {before}{more}."
    )


def _check_output(history: History, output: bytes | None) -> None:
    was, now = history.output, output
    if was == now or (was is not None and now is not None and _read(was) == _read(now)):
        return
    raise ReplayFails(
        f"{_whose(history)} is {history.status} with {shown(history.error or _read(was), 300)}; "
        f"today's code gives {shown(_read(now), 300)}."
    )


def _read(raw: bytes | None) -> Any:
    return None if raw is None else decode_json(raw)


def _whose(history: History) -> str:
    return f"instance {history.id!r} of {history.workflow!r}"
