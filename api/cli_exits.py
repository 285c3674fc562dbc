"""Exit codes of the command line, and how it tells an error.

The codes are stable: scripts may rely on them. They are listed in `docs/cli.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ..runtime.errors import ToqueError

FAILED = 1
USAGE = 2
REFUSED = 3
NOT_FOUND = 4
CONFLICT = 5
TOO_LATE = 6
UNAVAILABLE = 7
UNKNOWN = 8
INTERRUPTED = 130

MEANINGS = {
    0: "done",
    FAILED: "another error, several of different kinds, or an instance that was waited for is not "
    "complete",
    USAGE: "wrong usage, or a file, a directory or input that can't be used; nothing was changed",
    REFUSED: "the token is not known, or may not do that",
    NOT_FOUND: "no such workflow, instance, step, account, ...",
    CONFLICT: "the id or the name is in use, or the status does not allow it",
    TOO_LATE: "not in the time given with `--timeout`",
    UNAVAILABLE: "no server there, or it can't take the call now; nothing was changed",
    UNKNOWN: "no answer came: the change may or may not have taken effect",
    INTERRUPTED: "interrupted by Ctrl-C",
}
_CODES = {
    FAILED: """
        account.too_many author.error batch.incomplete child.failed child.id_taken
        child.not_started child.too_many child.workflow_not_found cluster.start_failed codec.failed
        datadir.in_use entity.call_cycle entity.unknown_method http.method_not_allowed
        instance.crashed instance.failed instance.limit_exceeded instance.non_determinism
        instance.stuck internal join.empty join.starved loadtest.sender_lost payload.mismatch
        plane.unsupported
        protocol.mismatch runtime.closed server.address_in_use simulation.deadlock
        step.body_not_sent step.deadline step.event_timeout step.failed
        step.failed_non_retryable step.interrupted
        step.invalid_stream step.misuse step.non_retryable step.resources_unavailable
        step.result_mismatch step.retry_delay_failed step.timeout store.read_failed system.fault
        testing.not_in_simulation testing.outcome_differs testing.replay_fails
        testing.simulation_fault testing.waits_forever token.too_many workflow.code_missing
        workflow.too_many
    """,
    USAGE: """
        bundle.invalid bundle.refused codec.missing codec.wrong datadir.format
        http.head_too_large http.malformed instance.invalid_id payload.invalid payload.too_large
        payload.unencodable request.invalid request.invalid_argument runtimedir.unsafe
        store.damaged store.stale workflow.load_failed workflow.runs_at_import
    """,
    REFUSED: "auth.forbidden auth.unauthorized",
    NOT_FOUND: """
        account.not_found http.no_route instance.not_found migration.not_found script.not_found
        step.not_found token.not_found version.not_found workflow.not_found
    """,
    CONFLICT: """
        account.already_exists instance.already_exists instance.finished
        instance.invalid_transition migration.refused migration.stale migration.too_late
        migration.under_way request.id_reused request.refused step.undone workflow.owned
    """,
    UNAVAILABLE: """
        auth.too_many_failures entity.reset http.request_timeout instance.events_full
        instance.unborn overloaded plane.wrong rate.limited server.unreachable shard.fenced
        shard.unavailable worker.lost workflow.queue_full
    """,
    UNKNOWN: "outcome.unknown store.failed",
}
EXIT_OF = {code: number for number, codes in _CODES.items() for code in codes.split()}
"""The exit code of each error, by the error's code."""


def exit_code(error: BaseException) -> int:
    """The exit code for an error."""
    if isinstance(error, ToqueError):
        return EXIT_OF.get(error.code, FAILED)
    return TOO_LATE if isinstance(error, TimeoutError) else FAILED


def exit_code_of_many(numbers: Iterable[int], *, some_done: bool) -> int:
    """The exit code when some of many were refused: the one that all these have in common.

    Args:
        numbers: of the errors, as HTTP answers and batches have them.
        some_done: others were not refused, so that "nothing was changed" would be wrong.
    """
    by_number = {kind.number: kind.code for kind in _kinds(ToqueError)}
    found = {EXIT_OF.get(by_number.get(number, ""), FAILED) for number in numbers}
    code = found.pop() if len(found) == 1 else FAILED
    return FAILED if some_done and code in _NOTHING_DONE else code


_NOTHING_DONE = (USAGE, UNAVAILABLE)


def _kinds(kind: type[ToqueError]) -> Iterator[type[ToqueError]]:
    """The kind, after those that derive from it."""
    for each in kind.__subclasses__():
        yield from _kinds(each)
    yield kind


class NotInTime(TimeoutError):
    """What was waited for was not there in time. `data`: typed details, JSON-like."""

    def __init__(self, message: str, data: dict[str, Any]) -> None:
        super().__init__(message)
        self.data = data


def print_error(error: BaseException, *, as_json: bool) -> int:
    """Tell an error on stderr; gives the exit code."""
    if as_json and isinstance(error, (ToqueError, TimeoutError)):
        code = error.code if isinstance(error, ToqueError) else "timeout"
        _tell(code, str(error), getattr(error, "data", {}), as_json=True)
    else:
        _tell("", str(error) or type(error).__name__, {}, as_json=False)
    return exit_code(error)


def print_interrupted(message: str, data: dict[str, Any], *, as_json: bool) -> None:
    """Tell on stderr what Ctrl-C has left behind."""
    _tell("interrupted", message, data, as_json=as_json)


def _tell(code: str, message: str, data: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        told = {"error": {"code": code, "message": message, "data": data}}
        sys.stderr.write(msgspec.json.encode(told).decode() + "\n")
    else:
        sys.stderr.write(f"toque: {message}\n")
