"""The REST routes, as one bare ASGI application: no framework on the hot path.

Routing works on the raw path and decodes segments afterwards, because an instance id may hold
`/` as `%2F`. Each path has a twin with a trailing slash. Order of checks: token, account, route,
method, query, body; so nobody without a token learns which paths there are.

Bounds: a body is counted while it is read and refused past its limit; requests under way and
bytes held for them are bounded, past that callers get `overloaded`. A long wait ends when the
client goes away or the server drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, NamedTuple, TypeVar

from ..engines.views import EventPage
from ..runtime import limits
from ..runtime.errors import (
    ControlFlow,
    InvalidArgument,
    MethodNotAllowed,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
    RouteNotFound,
    ShardUnavailable,
)
from . import requests, shapes, watching_shapes
from .auth import TokenBook
from .content_http import Content
from .errors_http import JSON, Headers, answer_of
from .service import ControlPlane
from .subscribe_http import EventStream

T = TypeVar("T")
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PREFIX = "/client/v4/accounts/"
_PREFIX = PREFIX.encode()
_DRAINED_BYTES_MAX = 16 * limits.MIB
"""A longer body is not read to its end after a refusal: the connection is closed."""
_WATCH_AFTER_S = 0.25
"""How long a wait goes on before its client is watched."""


class _ClientGone(ControlFlow):
    """The client closed the connection; nobody hears the answer."""


class Route(NamedTuple):
    """A path (segments after the account; `{}` is a parameter), its method and its handler."""

    method: str
    path: tuple[str, ...]
    handler: str


ROUTES = (
    Route("GET", ("workflows",), "list_workflows"),
    Route("GET", ("workflows", "{}"), "get_workflow"),
    Route("POST", ("workflows", "{}", "instances"), "create_instance"),
    Route("GET", ("workflows", "{}", "instances"), "list_instances"),
    Route("POST", ("workflows", "{}", "instances", "batch"), "create_instances"),
    Route("PUT", ("workflows", "{}", "instances", "terminate"), "terminate_instances"),
    Route("POST", ("workflows", "{}", "instances", "batch", "delete"), "delete_instances"),
    Route("POST", ("workflows", "{}", "instances", "batch", "status"), "change_statuses"),
    Route("GET", ("workflows", "{}", "instances", "{}"), "get_instance"),
    Route("DELETE", ("workflows", "{}", "instances", "{}"), "delete_instance"),
    Route("PATCH", ("workflows", "{}", "instances", "{}", "status"), "change_status"),
    Route("GET", ("workflows", "{}", "instances", "{}", "events"), "get_events"),
    Route("GET", ("workflows", "{}", "instances", "{}", "step"), "get_step"),
    Route("POST", ("workflows", "{}", "instances", "{}", "events", "{}"), "send_event"),
    Route("GET", ("workflows", "{}", "instances", "{}", "subscribe"), "subscribe"),
    Route("GET", ("workflows", "{}", "instances", "{}", "waiting"), "get_waiting"),
)


class Request:
    """A request that has been routed: `words` are its decoded path parameters."""

    __slots__ = (
        "account",
        "gauge",
        "held",
        "key",
        "last_event",
        "length",
        "query",
        "receive",
        "words",
    )

    def __init__(self, scope: Scope, receive: Receive, gauge: _Gauge) -> None:
        self.account = ""
        self.words: list[str] = []
        self.query: bytes = scope["query_string"]
        self.receive = receive
        self.gauge = gauge
        self.held = 0
        self.length: int | None = None
        self.key: str | None = None
        self.last_event = 0

    async def body(self, bytes_max: int = limits.BODY_BYTES_MAX) -> bytes:
        """The whole body, or `PayloadTooLarge` as soon as it is known to be over `bytes_max`."""
        if self.length is not None and self.length > bytes_max:
            raise _too_large(bytes_max, self.length > _DRAINED_BYTES_MAX)
        message = await self.receive()
        if not message.get("more_body") and message["type"] == "http.request":
            body: bytes = message["body"]
            if len(body) > bytes_max:
                raise _too_large(bytes_max, False)
            self._hold(len(body))
            return body
        try:
            async with asyncio.timeout(limits.BODY_READ_MAX_MS / 1000):
                return await self._rest(message, bytes_max)
        except TimeoutError:
            raise RequestTimeout("the body did not arrive in time.", {"close": True}) from None

    async def _rest(self, message: Message, bytes_max: int) -> bytes:
        parts = []
        size = 0
        while True:
            if message["type"] != "http.request":
                raise _ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max, True)
            self._hold(len(part))
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self.receive()

    def _hold(self, size: int) -> None:
        self.gauge.hold(size)
        self.held += size

    async def gone(self) -> None:
        """Return when the client has closed the connection. Call it after the body was read."""
        while (await self.receive())["type"] == "http.request":
            pass


def _too_large(bytes_max: int, close: bool) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body is too large; at most {bytes_max} bytes are taken.",
        {"close": True} if close else None,
    )


class _Gauge:
    """Counts what is under way, within bounds."""

    __slots__ = ("bytes", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0

    def enter(self) -> None:
        if self.requests >= limits.REQUESTS_IN_FLIGHT_MAX:
            raise Overloaded(f"{self.requests} requests are under way.")
        self.requests += 1

    def hold(self, size: int) -> None:
        if self.bytes + size > limits.BODY_BYTES_IN_FLIGHT_MAX:
            raise Overloaded("too many bytes of request bodies are held.")
        self.bytes += size


Handler = Callable[[Request], Awaitable[bytes | EventStream | Content]]
Endpoints = dict[str, Handler]


class Routes:
    """The ASGI application for everything under `PREFIX`.

    Args:
        plane: the operations.
        tokens: who may call them.
    """

    def __init__(self, plane: ControlPlane, tokens: TokenBook) -> None:
        self._plane = plane
        self._tokens = tokens
        self._gauge = _Gauge()
        self._draining = False
        self._watches: set[_Watch] = set()
        self._streams = 0
        self._by_length: dict[int, dict[tuple[str, ...], Endpoints]] = {}
        for route in ROUTES:
            paths = self._by_length.setdefault(len(route.path) + 1, {})
            handler = getattr(self, "_" + route.handler)
            paths.setdefault(route.path, {})[route.method] = handler

    def drain(self) -> None:
        """End long waits: their callers are told to ask again."""
        self._draining = True
        for watch in list(self._watches):
            watch.give_up(_draining())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, self._gauge)
        entered = False
        headers: Headers = [JSON]
        try:
            self._gauge.enter()
            entered = True
            handler = self._admit(scope, request)
            body = await handler(request)
            if isinstance(body, EventStream):
                await self._stream(body, send)
                return
            if isinstance(body, Content):
                await body.send_to(send)
                return
            status = 200
        except _ClientGone:
            return
        except Exception as error:
            status, headers, body = answer_of(error)
            if getattr(error, "data", {}).get("close"):
                headers.append((b"connection", b"close"))
        finally:
            self._gauge.bytes -= request.held
            self._gauge.requests -= entered
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _admit(self, scope: Scope, request: Request) -> Handler:
        """Check token and account, then find the handler."""
        authorization = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value
            elif name == b"content-length":
                request.length = int(value) if value.isdigit() else None
            elif name == b"idempotency-key":
                request.key = value.decode("latin-1")
            elif name == b"last-event-id" and value.isdigit() and len(value) < 20:
                request.last_event = int(value)
        reached = self._tokens.account_of(authorization)
        parts: list[bytes] = scope["raw_path"][len(_PREFIX) :].split(b"/")
        if len(parts) > 1 and not parts[-1]:
            parts.pop()
        self._tokens.check_account(reached, parts[0])
        request.account = reached.decode()
        for path, endpoints in self._by_length.get(len(parts), {}).items():
            words = _match(path, parts)
            if words is not None:
                request.words = words
                handler = endpoints.get(scope["method"])
                if handler is None:
                    raise MethodNotAllowed(
                        f"this path takes {', '.join(endpoints)}, not {scope['method']}.",
                        {"allowed": list(endpoints)},
                    )
                return handler
        raise RouteNotFound(
            "there is no such path. Ids are percent-encoded path segments: '/' in an id is '%2F'."
        )

    # --- endpoints ---

    async def _list_workflows(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("page", "per_page", "search"))
        page = requests.parse_int(query, "page", 1) or 0
        per_page = requests.parse_int(query, "per_page", limits.PER_PAGE_DEFAULT) or 0
        found, total = await self._plane.list_workflows(
            request.account, search=query.get("search", ""), page=page, per_page=per_page
        )
        info = shapes.list_info(len(found), per_page, total, page, None)
        return shapes.answer_list([shapes.workflow_shape(item) for item in found], info)

    async def _get_workflow(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        found = await self._plane.get_workflow(request.account, request.words[0])
        return shapes.answer(shapes.workflow_shape(found))

    async def _create_instance(self, request: Request) -> bytes:
        wait_ms = _wait_of(requests.parse_query(request.query, ("wait",)))
        new = requests.parse_create(await request.body())
        work = self._plane.create_instance(
            request.account,
            request.words[0],
            instance_id=new.instance_id,
            params=new.params,
            wait_ms=wait_ms,
            retention=new.retention,
            request_id=request.key,
        )
        if not wait_ms:
            return shapes.answer(shapes.created(await work))
        view = await self._while_there(request, work)
        return shapes.answer(shapes.created_and_waited(view))

    async def _create_instances(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        items = requests.parse_batch(await request.body(limits.BATCH_BODY_BYTES_MAX))
        result = await self._plane.create_instances(
            request.account, request.words[0], items, request_id=request.key
        )
        return shapes.answer_batch(result)

    async def _list_instances(self, request: Request) -> bytes:
        query = requests.parse_list(request.query)
        found = await self._plane.list_instances(request.account, request.words[0], query)
        return shapes.answer_instances(found)

    async def _get_instance(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("order", "simple", "wait"))
        wait_ms = _wait_of(query)
        workflow, instance_id = request.words
        work = self._plane.get_instance(
            request.account,
            workflow,
            instance_id,
            with_steps=requests.parse_choice(query, "simple", ("false", "true")) == "false",
            newest_first=requests.parse_choice(query, "order", ("asc", "desc")) == "desc",
            wait_ms=wait_ms,
        )
        view = await (self._while_there(request, work) if wait_ms else work)
        return shapes.answer(shapes.detail(view))

    async def _change_status(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        change = requests.parse_status(await request.body())
        workflow, instance_id = request.words
        view = await self._plane.change_status(
            request.account, workflow, instance_id, change, request_id=request.key
        )
        timestamp = shapes.iso(self._plane.clock.now_ms())
        return shapes.answer(shapes.StatusChanged(view.status, timestamp))

    async def _change_statuses(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        ids, change = requests.parse_statuses(await request.body())
        done = await self._plane.change_many(
            request.account, request.words[0], ids, change, request_id=request.key
        )
        return shapes.answer(shapes.statuses_changed(done))

    async def _delete_instances(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        ids = requests.parse_ids(await request.body())
        done = await self._plane.delete_many(
            request.account, request.words[0], ids, request_id=request.key
        )
        return shapes.answer(shapes.instances_deleted(done))

    async def _delete_instance(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        workflow, instance_id = request.words
        await self._plane.delete_instance(
            request.account, workflow, instance_id, request_id=request.key
        )
        return shapes.answer(shapes.Deleted(instance_id))

    async def _terminate_instances(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("status",))
        statuses = [word for word in query.get("status", "").split(",") if word]
        begun = await self._plane.terminate_all(request.account, request.words[0], statuses)
        return shapes.answer(shapes.Begun("ok" if begun else "already_running"))

    async def _send_event(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        payload = await request.body()
        workflow, instance_id, event_type = request.words
        sent_ms = await self._plane.send_event(
            request.account,
            workflow,
            instance_id,
            event_type,
            payload or b"null",
            request_id=request.key,
        )
        return shapes.answer(shapes.EventSent(instance_id, shapes.iso(sent_ms)))

    async def _get_events(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("cursor", "filter", "limit", "wait"))
        work = self._events(
            request,
            requests.parse_int(query, "cursor", 0) or 0,
            requests.parse_words(query, "filter"),
            _wait_of(query),
            requests.parse_int(query, "limit", limits.EVENTS_PAGE_MAX) or 0,
        )
        return shapes.answer(watching_shapes.page_shape(await work, request.words[1]))

    async def _get_step(self, request: Request) -> bytes | Content:
        query = requests.parse_query(request.query, ("name", "type", "attempt", "as"))
        name = query.get("name", "")
        if not name:
            raise InvalidArgument("name is missing; give a step's public name: ?name=fetch-1")
        kind = requests.parse_choice(query, "type", ("step", "waitForEvent"))
        attempt = requests.parse_int(query, "attempt", 0) or 0
        account, (workflow, instance_id) = request.account, request.words
        found = await self._plane.step_output(
            account, workflow, instance_id, name, kind=kind, attempt=attempt
        )
        size = found.stream_size
        if size is None or requests.parse_choice(query, "as", ("content", "json")) == "json":
            return shapes.answer(shapes.step_output(found))
        parts = self._plane.stream(account, workflow, instance_id, name, size)
        first = await anext(parts, b"")
        return Content(first, parts, size, shapes.stream_name(found))

    async def _subscribe(self, request: Request) -> EventStream:
        query = requests.parse_query(request.query, ("cursor", "filter"))
        types = requests.parse_words(query, "filter")
        cursor = max(requests.parse_int(query, "cursor", 0) or 0, request.last_event)

        async def next_page(cursor: int) -> EventPage:
            return await self._events(request, cursor, types, limits.SUBSCRIBER_QUIET_MS)

        return EventStream(
            request.words[1], await self._events(request, cursor, types, 0), next_page
        )

    async def _stream(self, stream: EventStream, send: Send) -> None:
        if self._streams >= limits.SUBSCRIPTIONS_MAX:
            raise Overloaded(f"{self._streams} subscriptions are served here.")
        self._streams += 1
        try:
            await stream.send_to(send)
        finally:
            self._streams -= 1

    async def _events(
        self,
        request: Request,
        cursor: int,
        types: tuple[str, ...],
        wait_ms: int,
        limit: int = limits.EVENTS_PAGE_MAX,
    ) -> EventPage:
        workflow, instance_id = request.words
        work = self._plane.watching.events(
            request.account,
            workflow,
            instance_id,
            cursor=cursor,
            types=types,
            limit=limit,
            wait_ms=wait_ms,
        )
        return await (self._while_there(request, work) if wait_ms else work)

    async def _get_waiting(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        workflow, instance_id = request.words
        view, slot = await self._plane.watching.waiting(request.account, workflow, instance_id)
        return shapes.answer(watching_shapes.waiting_shape(instance_id, view, slot))

    async def _while_there(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """The result of a long wait, given up when the client goes or the server drains."""
        if self._draining:
            work.close()
            raise _draining()
        loop = asyncio.get_running_loop()
        watch = _Watch(request, loop)
        timer = loop.call_later(_WATCH_AFTER_S, watch.start)
        self._watches.add(watch)
        try:
            return await work
        except asyncio.CancelledError:
            if watch.reason is None:
                raise
            watch.task.uncancel()
            raise watch.reason from None
        finally:
            timer.cancel()
            watch.stop()
            self._watches.discard(watch)


class _Watch:
    """Ends a request's wait from outside. It is the current task's, made within it."""

    __slots__ = ("_loop", "_request", "_watching", "reason", "task")

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task()
        assert task is not None  # requests are tasks
        self.task: asyncio.Task[Any] = task
        self.reason: BaseException | None = None
        self._request = request
        self._loop = loop
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look out for the client's leaving (short waits end before that costs anything)."""
        self._watching = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        await self._request.gone()
        self.give_up(_ClientGone())

    def give_up(self, reason: BaseException) -> None:
        """End the wait; its request raises `reason`."""
        if self.reason is None:
            self.reason = reason
            self.task.cancel()

    def stop(self) -> None:
        """Look out no more."""
        if self._watching is not None:
            self._watching.cancel()


def _draining() -> ShardUnavailable:
    return ShardUnavailable("the server is shutting down; ask again.")


def _match(path: tuple[str, ...], parts: list[bytes]) -> list[str] | None:
    """The decoded parameters of a path, if it is that path. `parts[0]` is the account."""
    words = []
    for expected, part in zip(path, parts[1:], strict=True):
        if expected == "{}":
            if not part:
                return None
            words.append(part)
        elif expected.encode() != part:
            return None
    return [requests.decode_segment(word) for word in words]


def _wait_of(query: dict[str, str]) -> int:
    text = query.get("wait")
    return 0 if text is None else requests.parse_duration(text, "wait")
