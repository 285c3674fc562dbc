"""The client's backend over HTTP: the REST API's paths and shapes.

How calls are sent and repeated: `transport_http`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from ..engines.durations import Duration, duration_ms
from ..runtime import limits
from ..runtime.entropy import Entropy, SystemEntropy
from ..runtime.ids import check_account_id
from .changes import BatchChanges, Change, ItemError
from .client import Client
from .client_instance import no_stream
from .client_port import wait_max_ms
from .client_values import (
    CallOptions,
    CreatedStatus,
    InstanceLine,
    InstanceStatus,
    LinePage,
    StepOutputStatus,
    WorkflowSummary,
)
from .service import NewInstance
from .transport_http import HttpTransport, NotAStream, check_token, check_url
from .watched import InstanceEvents, Waiting

T = TypeVar("T")


class _Envelope(msgspec.Struct, Generic[T], frozen=True):
    result: T


class _Id(msgspec.Struct, frozen=True):
    id: str


class _IdAndStatus(msgspec.Struct, frozen=True):
    id: str
    status: str


class _Info(msgspec.Struct, frozen=True):
    cursor: str | None = None


class _LinesEnvelope(msgspec.Struct, frozen=True):
    result: list[InstanceLine]
    result_info: _Info


class _Changed(msgspec.Struct, frozen=True):
    status: str = ""
    timestamp: str = ""


class _Changes(msgspec.Struct, frozen=True):
    changed: list[_IdAndStatus]
    errors: list[ItemError]
    cursor: str | None = None


class _Deletions(msgspec.Struct, frozen=True):
    deleted: list[_Id]
    errors: list[ItemError]
    cursor: str | None = None


def _done(found: _Deletions) -> BatchChanges:
    return BatchChanges([(each.id, "deleted") for each in found.deleted], found.errors)


_readers: dict[Any, msgspec.json.Decoder[Any]] = {}


def _read(kind: Any) -> msgspec.json.Decoder[Any]:
    """What reads an answer whose result is `kind`; there is a handful of kinds."""
    reader = _readers.get(kind)
    if reader is None:
        reader = _readers[kind] = msgspec.json.Decoder(_Envelope[kind])
    return reader


_lines = msgspec.json.Decoder(_LinesEnvelope)


def connect(
    url: str,
    token: str | None = None,
    account: str = "default",
    *,
    retry_for: Duration = limits.CLIENT_RETRY_FOR_MS / 1000,
    timeout: Duration | None = None,
) -> Client:
    """A client of the server at `url`.

    Args:
        url: for example `http://127.0.0.1:8787`.
        token: None: the environment variable `TOQUE_TOKEN`.
        account: whose workflows.
        retry_for: how long a call is repeated while the server can't take it.
        timeout: of each call as a whole, with its repeats; None: as long as the server may take.

    Raises:
        InvalidArgument: one of them is not as it must be. No call is made here.
    """
    entropy = SystemEntropy()
    token = token if token is not None else os.environ.get("TOQUE_TOKEN")
    retry_for_ms = duration_ms(retry_for, "retry_for")
    client = Client(HttpBackend(url, token, account, entropy, retry_for_ms=retry_for_ms), entropy)
    return client if timeout is None else client.with_options(timeout=timeout)


class HttpBackend:
    """Calls the REST API.

    Args:
        url: the server.
        token: bearer token; None: none is sent.
        account: whose workflows.
        entropy: jitter between tries.
        retry_for_ms: how long a call is repeated.
        connections_max: how many are open at once, at most.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        account: str,
        entropy: Entropy,
        *,
        retry_for_ms: int = limits.CLIENT_RETRY_FOR_MS,
        connections_max: int = limits.CLIENT_CONNECTIONS_MAX,
    ) -> None:
        origin = check_url(url)
        headers = {} if token is None else {"Authorization": f"Bearer {check_token(token)}"}
        self.account = check_account_id(account)
        self._origin = origin
        self._base = f"{origin}/client/v4/accounts/{account}"
        self._transport = HttpTransport(
            origin, headers, entropy, retry_for_ms / 1000, connections_max
        )

    @property
    def retries(self) -> int:
        """How often calls were made again, over its connections."""
        return self._transport.retries

    @property
    def wait_max_ms(self) -> int:
        """The longest wait that one call may ask for: its answer has to come in time."""
        return wait_max_ms(self._transport.timeout_s)

    def with_options(self, options: CallOptions) -> HttpBackend:
        """The same, over the same connections, with other times."""
        other = HttpBackend.__new__(HttpBackend)
        other.account, other._origin, other._base = self.account, self._origin, self._base
        other._transport = self._transport.with_options(options)
        return other

    # --- operations ---

    async def create(
        self, workflow: str, new: NewInstance, wait_ms: int, request_id: str
    ) -> InstanceStatus:
        query = f"?wait={wait_ms}ms" if wait_ms else ""
        path = f"/{workflow}/instances{query}"
        body = _create_body(new)
        return await self._call(CreatedStatus, "POST", path, body, request_id, wait_ms)

    async def create_batch(
        self, workflow: str, news: list[NewInstance], request_id: str
    ) -> list[str]:
        body = b"[" + b",".join(map(_create_body, news)) + b"]"
        path = f"/{workflow}/instances/batch"
        found = await self._call(list[_Id], "POST", path, body, request_id)
        return [item.id for item in found]

    async def get(
        self, workflow: str, instance_id: str, *, with_steps: bool, wait_ms: int
    ) -> InstanceStatus:
        query = {} if with_steps else {"simple": "true"}
        if wait_ms:
            query["wait"] = f"{wait_ms}ms"
        path = _instance(workflow, instance_id) + (f"?{urlencode(query)}" if query else "")
        return await self._call(InstanceStatus, "GET", path, wait_ms=wait_ms)

    async def change_status(
        self, workflow: str, instance_id: str, change: Change, request_id: str
    ) -> str:
        path = _instance(workflow, instance_id) + "/status"
        body = msgspec.json.encode(_change_body(change))
        return (await self._call(_Changed, "PATCH", path, body, request_id)).status

    async def change_many(
        self, workflow: str, ids: list[str], change: Change, request_id: str
    ) -> BatchChanges:
        path = f"/{workflow}/instances/batch/status"
        body = msgspec.json.encode({"instances": ids, **_change_body(change)})
        found = await self._call(_Changes, "POST", path, body, request_id)
        return BatchChanges([(each.id, each.status) for each in found.changed], found.errors)

    async def change_matching(
        self, workflow: str, body: Mapping[str, Any], change: Change, request_id: str
    ) -> tuple[BatchChanges, str | None]:
        path = f"/{workflow}/instances/batch/status"
        raw = msgspec.json.encode({**body, **_change_body(change)})
        found = await self._call(_Changes, "POST", path, raw, request_id)
        done = BatchChanges([(each.id, each.status) for each in found.changed], found.errors)
        return done, found.cursor

    async def delete(self, workflow: str, instance_id: str, request_id: str) -> None:
        await self._call(Any, "DELETE", _instance(workflow, instance_id), None, request_id)

    async def delete_many(self, workflow: str, ids: list[str], request_id: str) -> BatchChanges:
        path = f"/{workflow}/instances/batch/delete"
        body = msgspec.json.encode({"instances": ids})
        return _done(await self._call(_Deletions, "POST", path, body, request_id))

    async def delete_matching(
        self, workflow: str, body: Mapping[str, Any], request_id: str
    ) -> tuple[BatchChanges, str | None]:
        path = f"/{workflow}/instances/batch/delete"
        raw = msgspec.json.encode(body)
        found = await self._call(_Deletions, "POST", path, raw, request_id)
        return _done(found), found.cursor

    async def terminate_all(self, workflow: str, statuses: list[str]) -> bool:
        query = f"?{urlencode({'status': ','.join(statuses)})}" if statuses else ""
        path = f"/{workflow}/instances/terminate{query}"
        return (await self._call(_Changed, "PUT", path)).status == "ok"

    async def send_event(
        self, workflow: str, instance_id: str, event_type: str, payload: bytes, request_id: str
    ) -> str:
        path = f"{_instance(workflow, instance_id)}/events/{event_type}"
        return (await self._call(_Changed, "POST", path, payload, request_id)).timestamp

    async def events(
        self, workflow: str, instance_id: str, cursor: int, types: Sequence[str], wait_ms: int
    ) -> InstanceEvents:
        query = {"cursor": str(cursor), "wait": f"{wait_ms}ms"}
        if types:
            query["filter"] = ",".join(types)
        path = f"{_instance(workflow, instance_id)}/events?{urlencode(query)}"
        return await self._call(InstanceEvents, "GET", path, wait_ms=wait_ms)

    async def waiting(self, workflow: str, instance_id: str) -> Waiting:
        path = _instance(workflow, instance_id) + "/waiting"
        return await self._call(Waiting, "GET", path)

    async def stream(self, workflow: str, instance_id: str, name: str) -> AsyncIterator[bytes]:
        path = f"{_instance(workflow, instance_id)}/step?{urlencode({'name': name})}"
        try:
            async for part in self._transport.parts(
                f"{self._base}/workflows{path}", f"the stream of step {name!r:.300}"
            ):
                yield part
        except NotAStream:
            raise no_stream(name) from None

    async def step_output(
        self, workflow: str, instance_id: str, name: str, attempt: int
    ) -> StepOutputStatus:
        query = {"name": name, "as": "json"}
        if attempt:
            query["attempt"] = str(attempt)
        path = f"{_instance(workflow, instance_id)}/step?{urlencode(query)}"
        return await self._call(StepOutputStatus, "GET", path)

    async def list_page(
        self, workflow: str, filters: Mapping[str, str], cursor: str | None
    ) -> LinePage:
        query = dict(filters) if cursor is None else {**filters, "cursor": cursor}
        url = f"{self._base}/workflows/{workflow}/instances?{urlencode(query)}"
        found = await self._transport.call(_lines, "GET", url)
        return LinePage(found.result, found.result_info.cursor)

    async def list_workflows(self, page: int) -> list[WorkflowSummary]:
        path = f"?page={page}&per_page={limits.PER_PAGE_MAX}"
        return await self._call(list[WorkflowSummary], "GET", path)

    async def get_workflow(self, workflow: str) -> WorkflowSummary:
        return await self._call(WorkflowSummary, "GET", f"/{workflow}")

    async def statistics(self) -> dict[str, dict[str, Any]]:
        kind = dict[str, dict[str, Any]]
        url = f"{self._origin}/toque/v1/shards"
        found: dict[str, dict[str, Any]] = (
            await self._transport.call(_read(kind), "GET", url)
        ).result
        return found

    async def manage(
        self,
        kind: type[T],
        method: str,
        words: Sequence[str],
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | bytes | None = None,
        request_id: str | None = None,
        standard: bool = False,
    ) -> T:
        base = self._base if standard else f"{self._origin}/toque/v1"
        path = "/".join(quote(word, safe="*") for word in words)
        url = f"{base}/{path}" + (f"?{urlencode(query)}" if query else "")
        raw = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        found = await self._transport.call(_read(kind), method, url, raw, request_id)
        result: T = found.result
        return result

    async def close(self) -> None:
        """Close all connections, also those of clients that `with_options` gave."""
        await self._transport.close()

    async def _call(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: bytes | None = None,
        request_id: str | None = None,
        wait_ms: int = 0,
    ) -> T:
        """The result of a call on the account's workflows."""
        url = f"{self._base}/workflows{path}"
        found = await self._transport.call(_read(kind), method, url, body, request_id, wait_ms)
        result: T = found.result
        return result


def _create_body(new: NewInstance) -> bytes:
    params = new.params
    if params.startswith(b'"'):  # a string that the server is to take as JSON: the JSON of it
        params = msgspec.json.encode(params.decode())
    head = b"" if new.instance_id is None else b'"instance_id":"' + new.instance_id.encode() + b'",'
    tail = b""
    if new.retention is not None:
        kept = dict(zip(("success_retention", "error_retention"), new.retention, strict=True))
        tail = b',"instance_retention":' + msgspec.json.encode(kept)
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
