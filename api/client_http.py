"""The client's backend over HTTP: pooled connections, repeats that take effect once.

A call is repeated, with the same Idempotency-Key, when no connection came about, the connection
broke, or the server answered 429, 502, 503 or 504; with backoff and jitter, honouring Retry-After,
until `CLIENT_RETRY_FOR_MS` have passed. Then the last typed error is raised: `ServerUnreachable`
if nothing was ever sent, `OutcomeUnknown` if a change may have taken effect.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from ..runtime import limits
from ..runtime.entropy import Entropy, SystemEntropy
from ..runtime.errors import (
    InstanceAlreadyExists,
    InstanceNotFound,
    InvalidArgument,
    OutcomeUnknown,
    ServerUnreachable,
    ToqueError,
    Unauthorized,
    WorkflowNotFound,
    from_wire,
)
from ..runtime.ids import check_account_id
from .changes import BatchChanges, Change, ItemError
from .client import (
    Client,
    InstanceLine,
    InstanceStatus,
    LinePage,
    StepOutputStatus,
    WorkflowSummary,
    no_stream,
)
from .client_watching import InstanceEvents, Waiting
from .service import NewInstance

T = TypeVar("T")
_RETRIED = frozenset({429, 502, 503, 504})
_BY_NUMBER: dict[int, type[ToqueError]] = {
    known.number: known
    for known in (Unauthorized, WorkflowNotFound, InstanceNotFound, InstanceAlreadyExists)
}
"""For servers that speak the standard without toque's extension."""
_ANSWER_SLACK_S = 60.0
_LARGE_BODY_BYTES = 512 * limits.KIB  # aiohttp sends larger ones in pieces if they are a stream
_UNSEEN = re.compile(r"[\x00-\x20\x7f]")
_JSON = {"Content-Type": "application/json"}


class _StatusEnvelope(msgspec.Struct, frozen=True):
    result: InstanceStatus


class _StepOutputEnvelope(msgspec.Struct, frozen=True):
    result: StepOutputStatus


class _Id(msgspec.Struct, frozen=True):
    id: str


class _IdAndStatus(msgspec.Struct, frozen=True):
    id: str
    status: str


class _IdsEnvelope(msgspec.Struct, frozen=True):
    result: list[_Id]


class _Info(msgspec.Struct, frozen=True):
    cursor: str | None = None


class _LinesEnvelope(msgspec.Struct, frozen=True):
    result: list[InstanceLine]
    result_info: _Info


class _WorkflowEnvelope(msgspec.Struct, frozen=True):
    result: WorkflowSummary


class _WorkflowsEnvelope(msgspec.Struct, frozen=True):
    result: list[WorkflowSummary]


class _Changed(msgspec.Struct, frozen=True):
    status: str = ""
    timestamp: str = ""


class _ChangedEnvelope(msgspec.Struct, frozen=True):
    result: _Changed


class _Changes(msgspec.Struct, frozen=True):
    changed: list[_IdAndStatus]
    errors: list[ItemError]


class _ChangesEnvelope(msgspec.Struct, frozen=True):
    result: _Changes


class _Deletions(msgspec.Struct, frozen=True):
    deleted: list[_Id]
    errors: list[ItemError]


class _DeletionsEnvelope(msgspec.Struct, frozen=True):
    result: _Deletions


class _Extension(msgspec.Struct, frozen=True):
    code: str
    data: dict[str, Any] = {}


class _Failure(msgspec.Struct, frozen=True):
    code: int
    message: str
    toque: _Extension | None = None


class _FailureEnvelope(msgspec.Struct, frozen=True):
    errors: list[_Failure]


class _EventsEnvelope(msgspec.Struct, frozen=True):
    result: InstanceEvents


class _WaitingEnvelope(msgspec.Struct, frozen=True):
    result: Waiting


_status = msgspec.json.Decoder(_StatusEnvelope)
_events = msgspec.json.Decoder(_EventsEnvelope)
_waiting = msgspec.json.Decoder(_WaitingEnvelope)
_step_output = msgspec.json.Decoder(_StepOutputEnvelope)
_ids = msgspec.json.Decoder(_IdsEnvelope)
_lines = msgspec.json.Decoder(_LinesEnvelope)
_workflow = msgspec.json.Decoder(_WorkflowEnvelope)
_workflows = msgspec.json.Decoder(_WorkflowsEnvelope)
_changed = msgspec.json.Decoder(_ChangedEnvelope)
_changes = msgspec.json.Decoder(_ChangesEnvelope)
_deletions = msgspec.json.Decoder(_DeletionsEnvelope)
_any = msgspec.json.Decoder(Any)
_shards = msgspec.json.Decoder(dict[str, dict[str, Any]])
_failed = msgspec.json.Decoder(_FailureEnvelope)


def connect(
    url: str,
    token: str | None = None,
    account: str = "default",
    *,
    retry_for: float = limits.CLIENT_RETRY_FOR_MS / 1000,
) -> Client:
    """A client of the server at `url`.

    Args:
        url: for example `http://127.0.0.1:8787`.
        token: None: the environment variable `TOQUE_TOKEN`.
        account: whose workflows.
        retry_for: seconds for which a call is repeated while the server can't take it.
    """
    entropy = SystemEntropy()
    token = token if token is not None else os.environ.get("TOQUE_TOKEN")
    backend = HttpBackend(url, token, account, entropy, retry_for_ms=int(retry_for * 1000))
    return Client(backend, entropy)


class HttpBackend:
    """Calls the REST API.

    Args:
        url: the server.
        token: bearer token; None: none is sent.
        account: whose workflows.
        entropy: jitter between tries.
        retry_for_ms: how long a call is repeated.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        account: str,
        entropy: Entropy,
        *,
        retry_for_ms: int = limits.CLIENT_RETRY_FOR_MS,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"url {url!r:.200} must start with http:// or https://.")
        try:
            host = URL(url).host
        except ValueError:
            host = None
        if not host or _UNSEEN.search(url):
            raise InvalidArgument(f"url {url!r:.200} is not valid; write http://127.0.0.1:8787.")
        if token is not None and (not token.isascii() or _UNSEEN.search(token)):
            raise InvalidArgument(
                "the token holds spaces, control characters or such as are not ASCII, which no "
                "token does; check TOQUE_TOKEN."
            )
        check_account_id(account)
        self._origin = url.rstrip("/")
        self._base = f"{self._origin}/client/v4/accounts/{account}/workflows"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._entropy = entropy
        self._retry_for_s = retry_for_ms / 1000
        self._session: aiohttp.ClientSession | None = None

    # --- operations ---

    async def create(
        self, workflow: str, new: NewInstance, wait_ms: int, request_id: str
    ) -> InstanceStatus:
        query = f"?wait={wait_ms}ms" if wait_ms else ""
        path = f"/{workflow}/instances{query}"
        body = _create_body(new)
        return (await self._call(_status, "POST", path, body, request_id, wait_ms)).result

    async def create_batch(
        self, workflow: str, news: list[NewInstance], request_id: str
    ) -> list[str]:
        body = b"[" + b",".join(map(_create_body, news)) + b"]"
        found = await self._call(_ids, "POST", f"/{workflow}/instances/batch", body, request_id)
        return [item.id for item in found.result]

    async def get(
        self, workflow: str, instance_id: str, *, with_steps: bool, wait_ms: int
    ) -> InstanceStatus:
        query = {} if with_steps else {"simple": "true"}
        if wait_ms:
            query["wait"] = f"{wait_ms}ms"
        path = _instance(workflow, instance_id) + (f"?{urlencode(query)}" if query else "")
        return (await self._call(_status, "GET", path, wait_ms=wait_ms)).result

    async def change_status(
        self, workflow: str, instance_id: str, change: Change, request_id: str
    ) -> str:
        path = _instance(workflow, instance_id) + "/status"
        body = msgspec.json.encode(_change_body(change))
        return (await self._call(_changed, "PATCH", path, body, request_id)).result.status

    async def change_many(
        self, workflow: str, ids: list[str], change: Change, request_id: str
    ) -> BatchChanges:
        path = f"/{workflow}/instances/batch/status"
        body = msgspec.json.encode({"instances": ids, **_change_body(change)})
        found = (await self._call(_changes, "POST", path, body, request_id)).result
        return BatchChanges([(each.id, each.status) for each in found.changed], found.errors)

    async def delete(self, workflow: str, instance_id: str, request_id: str) -> None:
        await self._call(_any, "DELETE", _instance(workflow, instance_id), None, request_id)

    async def delete_many(self, workflow: str, ids: list[str], request_id: str) -> BatchChanges:
        path = f"/{workflow}/instances/batch/delete"
        body = msgspec.json.encode({"instances": ids})
        found = (await self._call(_deletions, "POST", path, body, request_id)).result
        return BatchChanges([(each.id, "deleted") for each in found.deleted], found.errors)

    async def terminate_all(self, workflow: str, statuses: list[str]) -> bool:
        query = f"?{urlencode({'status': ','.join(statuses)})}" if statuses else ""
        path = f"/{workflow}/instances/terminate{query}"
        return (await self._call(_changed, "PUT", path)).result.status == "ok"

    async def send_event(
        self, workflow: str, instance_id: str, event_type: str, payload: bytes, request_id: str
    ) -> str:
        path = f"{_instance(workflow, instance_id)}/events/{event_type}"
        return (await self._call(_changed, "POST", path, payload, request_id)).result.timestamp

    async def events(
        self, workflow: str, instance_id: str, cursor: int, types: Sequence[str], wait_ms: int
    ) -> InstanceEvents:
        query = {"cursor": str(cursor), "wait": f"{wait_ms}ms"}
        if types:
            query["filter"] = ",".join(types)
        path = f"{_instance(workflow, instance_id)}/events?{urlencode(query)}"
        return (await self._call(_events, "GET", path, wait_ms=wait_ms)).result

    async def waiting(self, workflow: str, instance_id: str) -> Waiting:
        path = _instance(workflow, instance_id) + "/waiting"
        return (await self._call(_waiting, "GET", path)).result

    async def stream(self, workflow: str, instance_id: str, name: str) -> AsyncIterator[bytes]:
        path = f"{_instance(workflow, instance_id)}/step?{urlencode({'name': name})}"
        if self._session is None:
            self._session = self._new_session()
        timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=_ANSWER_SLACK_S)
        try:
            async with self._session.get(
                URL(self._base + path, encoded=True), allow_redirects=False, timeout=timeout
            ) as answer:
                if answer.status != 200:
                    raise _error_of(answer.status, await answer.read())
                if answer.content_type != "application/octet-stream":
                    raise no_stream(name)
                async for part in answer.content.iter_chunked(limits.STREAM_PART_BYTES):
                    yield part
        except (aiohttp.ClientError, TimeoutError, OSError) as fault:
            raise ServerUnreachable(
                f"the stream of step {name!r:.300} broke off: {type(fault).__name__} {fault}"
            ) from None

    async def step_output(
        self, workflow: str, instance_id: str, name: str, attempt: int
    ) -> StepOutputStatus:
        query = {"name": name, "as": "json"}
        if attempt:
            query["attempt"] = str(attempt)
        path = f"{_instance(workflow, instance_id)}/step?{urlencode(query)}"
        return (await self._call(_step_output, "GET", path)).result

    async def list_page(
        self, workflow: str, filters: Mapping[str, str], cursor: str | None
    ) -> LinePage:
        query = dict(filters) if cursor is None else {**filters, "cursor": cursor}
        found = await self._call(_lines, "GET", f"/{workflow}/instances?{urlencode(query)}")
        return LinePage(found.result, found.result_info.cursor)

    async def list_workflows(self, page: int) -> list[WorkflowSummary]:
        path = f"?page={page}&per_page={limits.PER_PAGE_MAX}"
        return (await self._call(_workflows, "GET", path)).result

    async def get_workflow(self, workflow: str) -> WorkflowSummary:
        return (await self._call(_workflow, "GET", f"/{workflow}")).result

    async def statistics(self) -> dict[str, dict[str, Any]]:
        return await self._call(_shards, "GET", "/toque/v1/shards", base=self._origin)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- transport ---

    async def _call(
        self,
        decoder: msgspec.json.Decoder[T],
        method: str,
        path: str,
        body: bytes | None = None,
        request_id: str | None = None,
        wait_ms: int = 0,
        base: str | None = None,
    ) -> T:
        """The decoded answer of a call, repeated while that can help."""
        url = URL((base or self._base) + path, encoded=True)
        headers = None if request_id is None else {**_JSON, "Idempotency-Key": request_id}
        timeout = None
        if wait_ms:
            timeout = aiohttp.ClientTimeout(total=wait_ms / 1000 + _ANSWER_SLACK_S, connect=10)
        loop = asyncio.get_running_loop()
        until = loop.time() + self._retry_for_s
        tries = 0
        maybe_done = False
        while True:
            if self._session is None:
                self._session = self._new_session()
            large = body is not None and len(body) > _LARGE_BODY_BYTES
            data = io.BytesIO(body) if large and body is not None else body
            options: dict[str, Any] = {"data": data, "headers": headers}
            if timeout is not None:
                options["timeout"] = timeout
            pause_s = 0.0
            try:
                async with self._session.request(
                    method, url, allow_redirects=False, **options
                ) as answer:
                    raw = await answer.read()
                    status = answer.status
                    if status == 200:
                        return decoder.decode(raw)
                    error = _error_of(status, raw)
                    if status not in _RETRIED:
                        raise error
                    pause_s = _retry_after_s(answer.headers.get("Retry-After"))
                    maybe_done = maybe_done or not error_is_clean(error)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as fault:
                error = ServerUnreachable(f"no connection to {self._base}: {fault}")
            except (aiohttp.ClientError, TimeoutError, OSError) as fault:
                maybe_done = True
                told = f"{type(fault).__name__} {fault}".strip()
                error = OutcomeUnknown(f"the connection failed before the answer came: {told}")
            pause_s = max(pause_s, self._backoff_s(tries))
            tries += 1
            if loop.time() + pause_s >= until:
                raise _verdict(error, request_id is not None and maybe_done)
            await asyncio.sleep(pause_s)

    def _backoff_s(self, tries: int) -> float:
        most = min(limits.CLIENT_RETRY_MAX_MS, limits.CLIENT_RETRY_MIN_MS << min(tries, 16))
        return most * (0.5 + self._entropy.random() / 2) / 1000

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=limits.CLIENT_CONNECTIONS_MAX, keepalive_timeout=60, ttl_dns_cache=60
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_ANSWER_SLACK_S, connect=10),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )


def error_is_clean(error: ToqueError) -> bool:
    """Whether the error says that the call did not take effect."""
    return error.retryable or error.overloaded


def _verdict(error: ToqueError, unknown: bool) -> ToqueError:
    if unknown and not isinstance(error, OutcomeUnknown):
        return OutcomeUnknown(
            f"the change may or may not have taken effect; last: {error}", {"last": error.code}
        )
    return error


def _create_body(new: NewInstance) -> bytes:
    params = new.params
    if params.startswith(b'"'):  # a string that the server is to take as JSON: the JSON of it
        params = msgspec.json.encode(params.decode())
    head = b"" if new.instance_id is None else b'"instance_id":"' + new.instance_id.encode() + b'",'
    tail = b""
    if new.retention is not None:
        tail = (
            b',"instance_retention":{"success_retention":%d,"error_retention":%d}' % new.retention
        )
    return b"{" + head + b'"params":' + params + tail + b"}"


def _change_body(change: Change) -> dict[str, Any]:
    body: dict[str, Any] = {"status": change.change}
    if change.rollback:
        body["rollback"] = True
    if change.from_step is not None:
        body["from"] = change.from_step
    return body


def _instance(workflow: str, instance_id: str) -> str:
    return f"/{workflow}/instances/{quote(instance_id, safe='')}"


def _retry_after_s(text: str | None) -> float:
    try:
        return max(0.0, float(text)) if text else 0.0
    except ValueError:
        return 0.0  # an HTTP date; our own backoff does


def _error_of(status: int, raw: bytes) -> ToqueError:
    try:
        failure = _failed.decode(raw).errors[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
        text = raw[:200].decode("utf-8", "replace")
        return ToqueError(f"the server answered {status}: {text}", {"status": status})
    if failure.toque is None:
        known = _BY_NUMBER.get(failure.code, ToqueError)
        return known(failure.message, {"status": status, "number": failure.code})
    return from_wire((failure.toque.code, failure.message, failure.toque.data))
