"""Exit codes of the command line, and how it tells an error.

The codes are stable: scripts may rely on them. They are listed in `docs/cli.md`.
"""

from __future__ import annotations

import sys

import msgspec

from ..runtime.errors import (
    InvalidArgument,
    InvalidId,
    InvalidPayload,
    OutcomeUnknown,
    PayloadTooLarge,
    ToqueError,
)

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
    FAILED: "an error, or an instance that was waited for is not complete",
    USAGE: "wrong usage or bad input; nothing was changed",
    REFUSED: "the token is not known, or may not do that",
    NOT_FOUND: "no such workflow, instance, account, ...",
    CONFLICT: "the id is in use, or the status does not allow it",
    TOO_LATE: "not in the time given with `--timeout`",
    UNAVAILABLE: "no server there, or it can't take the call now; nothing was changed",
    UNKNOWN: "no answer came: the change may or may not have taken effect",
    INTERRUPTED: "interrupted by Ctrl-C",
}
_CONFLICTS = {
    "instance.already_exists",
    "instance.finished",
    "instance.invalid_transition",
    "migration.refused",
    "migration.too_late",
    "migration.under_way",
    "request.id_reused",
}


def exit_code(error: BaseException) -> int:
    """The exit code for an error."""
    if isinstance(error, TimeoutError):
        return TOO_LATE
    if not isinstance(error, ToqueError):
        return FAILED
    if isinstance(error, (InvalidArgument, InvalidId, InvalidPayload, PayloadTooLarge)):
        return USAGE
    if isinstance(error, OutcomeUnknown):
        return UNKNOWN
    if error.code in _CONFLICTS:
        return CONFLICT
    if error.status == 429 or error.retryable or error.overloaded:
        return UNAVAILABLE
    return {401: REFUSED, 403: REFUSED, 404: NOT_FOUND}.get(error.status, FAILED)


def print_error(error: BaseException, *, as_json: bool) -> int:
    """Tell an error on stderr; gives the exit code."""
    if as_json and isinstance(error, (ToqueError, TimeoutError)):
        code = error.code if isinstance(error, ToqueError) else "timeout"
        data = error.data if isinstance(error, ToqueError) else {}
        told = {"error": {"code": code, "message": str(error), "data": data}}
        sys.stderr.write(msgspec.json.encode(told).decode() + "\n")
    else:
        sys.stderr.write(f"toque: {str(error) or type(error).__name__}\n")
    return exit_code(error)
