"""Errors: one root, a branch by who is at fault, a stable code each.

* `CallerError`: the caller's mistake; nothing was changed.
* `AuthorError`: the workflow author's code misbehaved.
* `SystemFault`: weather; the flags say whether a retry can help.

Every error is picklable and crosses processes as `(code, message, data)`; `from_wire` makes the
same class again. Codes are never reused. `number` and `status` are what the HTTP API answers
with; the numbers that Cloudflare's clients know keep their meaning.

Control flow (`ControlFlow`) derives from `BaseException`, so that an author's
`except Exception` cannot swallow it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .guarded import kind_of, plain, shown, text_of

_REGISTRY: dict[str, type[ToqueError]] = {}


class ToqueError(Exception):
    """Root of all errors that toque raises on purpose.

    Attributes:
        code: stable name, `area.reason`.
        number: numeric code in HTTP answers.
        status: HTTP status.
        retryable: the same call may succeed later and did not take effect now.
        overloaded: the callee is past a bound; slow down.
        remote: raised by the code of another entity (set when it arrives over the wire).
        data: typed details, JSON-like.
    """

    code: ClassVar[str] = "internal"
    number: ClassVar[int] = 10001
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    overloaded: ClassVar[bool] = False

    def __init__(self, message: str = "", data: dict[str, Any] | None = None) -> None:
        super().__init__(message, data)
        self.message = message
        self.data: dict[str, Any] = data or {}
        self.remote = False

    def __getattr__(self, name: str) -> Any:
        """What a subclass lacks whose `__init__` does not call ours."""
        made: dict[str, Any] = {"message": Exception.__str__(self), "data": {}, "remote": False}
        if name not in made:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        setattr(self, name, made[name])
        return made[name]

    def __str__(self) -> str:
        return self.message or self.code

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "code" in cls.__dict__:
            known = _REGISTRY.setdefault(cls.code, cls)
            if known.__qualname__ != cls.__qualname__:
                raise TypeError(f"error code {cls.code!r} is taken by {known.__qualname__}")


class CallerError(ToqueError):
    """The caller's mistake. Refused at the edge; nothing was changed."""

    code = "request.invalid"
    number = 10100
    status = 400


class AuthorError(ToqueError):
    """The workflow author's code is at fault."""

    code = "author.error"
    number = 10300


class SystemFault(ToqueError):
    """Weather: a shard restarts, a disk fails, an answer is late."""

    code = "system.fault"
    status = 503


# --- the caller -----------------------------------------------------------------------------


class InvalidArgument(CallerError):
    """A value has the wrong type, range or form, or a field is unknown."""

    code = "request.invalid_argument"
    number = 10101


class InvalidId(CallerError):
    """An id or a name breaks its grammar."""

    code = "instance.invalid_id"
    number = 10401


class InvalidPayload(CallerError):
    """A payload is no JSON, or too deep."""

    code = "payload.invalid"
    number = 10102


class PayloadTooLarge(CallerError):
    """A payload is over its size limit."""

    code = "payload.too_large"
    number = 10103
    status = 413


class Unauthorized(CallerError):
    """No token, or not one that is known."""

    code = "auth.unauthorized"
    number = 10000
    status = 401


class Forbidden(CallerError):
    """The token does not reach that account. Says the same of accounts that do not exist."""

    code = "auth.forbidden"
    number = 9109
    status = 403


class RouteNotFound(CallerError):
    """The server has no such path."""

    code = "http.no_route"
    number = 7000
    status = 404


class MethodNotAllowed(CallerError):
    """The path takes other methods."""

    code = "http.method_not_allowed"
    number = 7001
    status = 405


class RequestTimeout(CallerError):
    """The request's body did not arrive in time."""

    code = "http.request_timeout"
    number = 7002
    status = 408


class HeadTooLarge(CallerError):
    """The request line and the headers are too large."""

    code = "http.head_too_large"
    number = 7003
    status = 431


class MalformedRequest(CallerError):
    """What came over the connection is no HTTP request."""

    code = "http.malformed"
    number = 7004


class WorkflowNotFound(CallerError):
    """The account has no workflow of that name."""

    code = "workflow.not_found"
    number = 10200
    status = 404


class TooManyWorkflows(CallerError):
    """The account holds as many workflows as it may."""

    code = "workflow.too_many"
    number = 10201


class VersionNotFound(CallerError):
    """The workflow has no such version, or not any more."""

    code = "version.not_found"
    number = 10202
    status = 404


class WorkflowOwned(CallerError):
    """The name belongs to another script, and the deploy does not say that it takes names over."""

    code = "workflow.owned"
    number = 10204


class ScriptNotFound(CallerError):
    """No script of that name, with a class of that name, has been deployed to the account."""

    code = "script.not_found"
    number = 10203


class BundleInvalid(CallerError):
    """What was sent is no bundle: no zip, too large, or with names that are not taken."""

    code = "bundle.invalid"
    number = 10205


class BundleRefused(CallerError):
    """The code of a bundle does not import, takes too long to, or defines no workflow."""

    code = "bundle.refused"
    number = 10206


class InstanceNotFound(CallerError):
    """The workflow has no instance of that id."""

    code = "instance.not_found"
    number = 10400
    status = 404


class InstanceAlreadyExists(CallerError):
    """The id is in use by an earlier create."""

    code = "instance.already_exists"
    number = 10405


class InstanceFinished(CallerError):
    """The instance has ended and takes no more events."""

    code = "instance.finished"
    number = 10406


class InvalidTransition(CallerError):
    """The instance's status does not allow that operation."""

    code = "instance.invalid_transition"
    number = 10407


class RequestIdReused(CallerError):
    """The request id (Idempotency-Key) was used for a request of other content."""

    code = "request.id_reused"
    number = 10109
    status = 422


class RequestRefused(CallerError):
    """A request with that id (Idempotency-Key) was refused before, and is not judged anew."""

    code = "request.refused"
    number = 10110
    status = 422


class UnknownMethod(CallerError):
    """The entity has no such method."""

    code = "entity.unknown_method"
    number = 10104


class CallCycle(CallerError):
    """A call came back to an entity that waits for it."""

    code = "entity.call_cycle"
    number = 10105


class DataDirInUse(CallerError):
    """Another process owns the data directory."""

    code = "datadir.in_use"
    number = 10106


class AddressInUse(CallerError):
    """Another process listens on the port that a server was to listen on."""

    code = "server.address_in_use"
    number = 10140


class RuntimeClosed(CallerError):
    """The runtime in this process was closed, and a client of it was used."""

    code = "runtime.closed"
    number = 10141


class DataDirFormat(CallerError):
    """The data directory has a format that this version can't open."""

    code = "datadir.format"
    number = 10107


class StoreDamaged(CallerError):
    """The store of a shard is damaged. It is left as it is; other shards go on."""

    code = "store.damaged"
    number = 10111


class StoreStale(StoreDamaged):
    """The store of a shard lacks what was acknowledged: an older copy, or a damaged log."""

    code = "store.stale"
    number = 10112


class UnsafeRuntimeDir(CallerError):
    """The directory for sockets belongs to someone else, or others may write to it."""

    code = "runtimedir.unsafe"
    number = 10108


# --- the author -----------------------------------------------------------------------------


class WorkflowLoadError(AuthorError):
    """A workflow file does not import, or holds no workflow."""

    code = "workflow.load_failed"
    number = 10301


class CodeMissing(WorkflowLoadError):
    """The code that an instance began with is not stored here; deploying it again lets it go on."""

    code = "workflow.code_missing"
    number = 10304


class ProgramRunsAtImport(WorkflowLoadError):
    """A worker imports the file of a workflow, and the file runs its program again by that."""

    code = "workflow.runs_at_import"
    number = 10305


class UnencodableValue(AuthorError):
    """A value can't be written as JSON."""

    code = "payload.unencodable"
    number = 10302


class InstanceFailed(AuthorError):
    """An instance that was waited for ended as errored or terminated."""

    code = "instance.failed"
    number = 10303


# --- weather --------------------------------------------------------------------------------


class Overloaded(SystemFault):
    """A bounded queue is full. Retry later, slower."""

    code = "overloaded"
    number = 10500
    overloaded = True


class ShardUnavailable(SystemFault):
    """The shard has no owner that answers just now. The call did not take effect."""

    code = "shard.unavailable"
    number = 10502
    retryable = True


class Fenced(SystemFault):
    """The shard has a newer owner; this one may not commit or answer."""

    code = "shard.fenced"
    number = 10503
    retryable = True


class OutcomeUnknown(SystemFault):
    """No answer came in time: the call may or may not have taken effect."""

    code = "outcome.unknown"
    number = 10504
    status = 504


class EntityReset(SystemFault):
    """The entity was reset before the call took effect."""

    code = "entity.reset"
    number = 10505
    retryable = True


class StoreFailed(SystemFault):
    """A commit failed; its outcome is unknown until the store is opened again."""

    code = "store.failed"
    number = 10506


class ProtocolMismatch(SystemFault):
    """The peer speaks another protocol version."""

    code = "protocol.mismatch"
    number = 10507


class ServerUnreachable(SystemFault):
    """No connection to the server; the call did not take effect."""

    code = "server.unreachable"
    number = 10508
    retryable = True


class BatchIncomplete(SystemFault):
    """Of many creates some have failed.

    Attributes:
        results: what became of each, in the client that raised it.
    """

    code = "batch.incomplete"
    number = 10530
    results: list[Any] = []


class WorkerLost(SystemFault):
    """A worker process with user code ended, hung or did not start; its instances go on anew."""

    code = "worker.lost"
    number = 10509
    retryable = True


class ClusterStartFailed(SystemFault):
    """Ray, or a shard actor, did not come up. `data` names the shard, if it is one."""

    code = "cluster.start_failed"
    number = 10520


class ControlFlow(BaseException):
    """Base of signals that must pass through an author's `except Exception`."""


WireError = tuple[str, str, dict[str, Any]]


def to_wire(error: BaseException) -> WireError:
    """The error as `(code, message, data)`. Unknown kinds keep only their name and text."""
    if isinstance(error, ToqueError):
        message = plain(error.message)
        return error.code, shown(error.message) if message is None else message, error.data
    return ToqueError.code, f"{kind_of(error)}: {text_of(error)}", {"name": kind_of(error)}


def from_wire(wire: WireError) -> ToqueError:
    """The error that `to_wire` wrote, as an instance of the same class where it is known."""
    code, message, data = wire
    error = _REGISTRY.get(code, ToqueError)(message, data)
    error.remote = True
    return error
