"""From an ASGI request to a handler: admission, routing, bodies, bounds and error answers.

All tables of routes share this, so all of them are guarded alike. Routing works on the raw path
and decodes segments afterwards, because an instance id may hold `/` as `%2F`. Each path has a
twin with a trailing slash. Order of checks: token, account, route, method, scope, query, body;
so nobody without a token learns which paths there are.

Bounds: a body is counted while it is read and refused past its limit; requests under way and
bytes held for them are bounded, past that callers get `overloaded`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol

from ..gatekeeper.identity import OPERATOR
from ..runtime import limits
from ..runtime.errors import (
    ControlFlow,
    MethodNotAllowed,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
    RouteNotFound,
    Unauthorized,
)
from ..runtime.histogram import Histogram
from ..runtime.ids import check_account_id
from . import requests
from .auth import Admission, Principal
from .errors_http import JSON, Headers, answer_of

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

WHOLE = "toque.whole"
"""In a scope: sends a whole answer in JSON, by status and body; False: it can't just now."""
ACCOUNT = "{account}"
"""The segment of a path that names the account; it is the fourth of every path that has one."""
_ACCOUNT_AT = 3
_ACCOUNTS = b"accounts"
_PATHS_KEPT_MAX = 1_024
_PATH_KEPT_BYTES_MAX = 512
_DRAINED_BYTES_MAX = 16 * limits.MIB
"""A longer body is not read to its end after a refusal: the connection is closed."""


class Streamed(Protocol):
    """An answer that sends itself, part by part."""

    async def send_to(self, send: Send) -> None:
        """Send it."""


class Route(NamedTuple):
    """A path, its method, its handler, and the scope that a token needs for it.

    Segments of the path: `{}` is a parameter. `operator`: only tokens of every account may.
    """

    method: str
    path: tuple[str, ...]
    handler: str
    scope: str
    operator: bool = False


class ClientGone(ControlFlow):
    """The client closed the connection; nobody hears the answer."""


class Request:
    """A request that has been routed.

    Attributes:
        principal: who asks.
        account: the one that the path names; empty if it names none.
        words: the decoded parameters of the path, the account left out.
        client: the address that it came from.
        key: its Idempotency-Key.
        meter: counts it.
        last_event: its Last-Event-ID.
    """

    __slots__ = (
        "_admission",
        "_authorization",
        "account",
        "client",
        "gauge",
        "held",
        "key",
        "last_event",
        "length",
        "meter",
        "principal",
        "query",
        "receive",
        "words",
    )

    def __init__(self, scope: Scope, receive: Receive, gauge: Gauge, meter: RouteMeter) -> None:
        self.account = ""
        self.principal = _NOBODY
        self._admission: Admission | None = None
        self._authorization: bytes | None = None
        address = scope.get("client")
        self.client: str = address[0] if address else ""
        self.words: list[str] = []
        self.query: bytes = scope["query_string"]
        self.receive = receive
        self.gauge = gauge
        self.held = 0
        self.meter = meter
        self.length: int | None = None
        self.key: str | None = None
        self.last_event = 0

    def admitted(self, admission: Admission, authorization: bytes | None, who: Principal) -> None:
        """It was found out who asks."""
        self._admission, self._authorization, self.principal = admission, authorization, who

    async def check_still(self) -> None:
        """Raise `Unauthorized` once the token with which it came is not valid any more."""
        if self._admission is None:
            raise Unauthorized("the request was not admitted.")
        await self._admission.check_still(self._authorization)

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
                raise ClientGone
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


class Gauge:
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


Handler = Callable[[Request], Awaitable[bytes | Streamed]]
_NOBODY = Principal("", "read", "", "")


class RouteMeter:
    """Requests of one route: how many ended with which status, and how long they took.

    Attributes:
        method, path: of the route; empty for requests that were refused before one was found.
        statuses: how many by HTTP status; CLIENT_GONE: the client did not wait for it.
        took_us: until the answer was handed to the connection.
    """

    __slots__ = ("method", "path", "statuses", "took_us")

    def __init__(self, method: str = "", path: str = "") -> None:
        self.method = method
        self.path = path
        self.statuses: dict[int, int] = {}
        self.took_us = Histogram()

    def add(self, status: int, took_s: float) -> None:
        """Count one request."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.took_us.add(int(took_s * 1_000_000))


CLIENT_GONE = 499


class _Endpoint(NamedTuple):
    handler: Handler
    route: Route
    meter: RouteMeter


class _Found(NamedTuple):
    """A path: its segments, that of the account; its endpoints by method and its parameters."""

    parts: list[bytes]
    account_part: bytes | None
    endpoints: Mapping[str, _Endpoint] = {}
    words: list[str] = []


class Dispatcher:
    """The ASGI application over tables of routes.

    Args:
        admission: knows who asks.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._gauge = Gauge()
        self._unrouted = RouteMeter()
        self.meters = [self._unrouted]
        """Figures of each route, and of what found none."""
        self._by_length: dict[int, dict[tuple[bytes, ...], dict[str, _Endpoint]]] = {}
        self._kept: dict[bytes, _Found] = {}

    def add(self, routes: Iterable[Route], handlers: object, base: tuple[str, ...] = ()) -> None:
        """Serve a table.

        Args:
            routes: the table.
            handlers: has a method `_<handler>` for each.
            base: what stands before each path.
        """
        for route in routes:
            path = tuple(word.encode() for word in (*base, *route.path))
            meter = RouteMeter(route.method, "/" + "/".join((*base, *route.path)))
            self.meters.append(meter)
            endpoint = _Endpoint(getattr(handlers, "_" + route.handler), route, meter)
            paths = self._by_length.setdefault(len(path), {})
            paths.setdefault(path, {})[route.method] = endpoint

    def routes(self) -> list[tuple[tuple[str, ...], Route]]:
        """All that is served: whole paths, and their routes."""
        return [
            (tuple(word.decode() for word in path), endpoint.route)
            for paths in self._by_length.values()
            for path, endpoints in paths.items()
            for endpoint in endpoints.values()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, self._gauge, self._unrouted)
        began = time.perf_counter()
        status = CLIENT_GONE
        try:
            status = await self._answer(request, scope, send)
        except ClientGone:
            return
        finally:
            request.meter.add(status, time.perf_counter() - began)

    async def _answer(self, request: Request, scope: Scope, send: Send) -> int:
        """Send the answer; gives its status."""
        whole = scope.pop(WHOLE, None)
        entered = False
        headers: Headers = [JSON]
        try:
            self._gauge.enter()
            entered = True
            handler = await self._admit(scope, request)
            body = await handler(request)
            if not isinstance(body, bytes):
                await body.send_to(send)
                return 200
            status = 200
        except Exception as error:
            status, headers, body = answer_of(error)
            if getattr(error, "data", {}).get("close"):
                headers.append((b"connection", b"close"))
        finally:
            self._gauge.bytes -= request.held
            self._gauge.requests -= entered
        if len(headers) == 1 and whole is not None and whole(status, body):
            return status
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return status

    @property
    def in_flight(self) -> int:
        """How many requests are under way."""
        return self._gauge.requests

    async def _admit(self, scope: Scope, request: Request) -> Handler:
        """Check token and account, find the handler, and check the scope."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        authorization = headers.get(b"authorization")
        length, key = headers.get(b"content-length"), headers.get(b"idempotency-key")
        if length is not None and length.isdigit():
            request.length = int(length)
        if key is not None:
            request.key = key.decode("latin-1")
        last = headers.get(b"last-event-id", b"")
        if last.isdigit() and len(last) < 20:
            request.last_event = int(last)
        admission = self._admission
        principal = await admission.principal(authorization, request.client)
        request.admitted(admission, authorization, principal)
        raw_path: bytes = scope["raw_path"]
        found = self._kept.get(raw_path) or _Found(*_parts_of(raw_path))
        if found.account_part is not None:
            request.account = _account(principal, found.account_part)
            if principal.account != request.account:  # an operator's, who may have mistyped it
                await admission.check_exists(request.account)
        if not found.endpoints:
            found = self._find(raw_path, found)
        method = scope["method"]
        endpoint = found.endpoints.get(method)
        if endpoint is None:
            known = list(found.endpoints)
            raise MethodNotAllowed(
                f"this path takes {', '.join(known)}, not {method}.", {"allowed": known}
            )
        request.words = found.words
        request.meter = endpoint.meter
        principal.check_scope(endpoint.route.scope)
        if endpoint.route.operator:
            principal.check_operator()
        return endpoint.handler

    def _find(self, raw_path: bytes, asked: _Found) -> _Found:
        """What the path is. It is kept: most requests are for a few paths."""
        for path, endpoints in self._by_length.get(len(asked.parts), {}).items():
            words = _match(path, asked.parts)
            if words is not None:
                found = asked._replace(endpoints=endpoints, words=words)
                if len(raw_path) <= _PATH_KEPT_BYTES_MAX:
                    if len(self._kept) >= _PATHS_KEPT_MAX:
                        self._kept.clear()
                    self._kept[raw_path] = found
                return found
        raise RouteNotFound(
            "there is no such path. Ids are percent-encoded path segments: '/' in an id is '%2F'."
        )


def _parts_of(raw_path: bytes) -> tuple[list[bytes], bytes | None]:
    """The segments of a path, and that of the account."""
    parts = raw_path[1:].split(b"/")
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    has_account = len(parts) > _ACCOUNT_AT and parts[_ACCOUNT_AT - 1] == _ACCOUNTS
    return parts, parts[_ACCOUNT_AT] if has_account else None


def _account(principal: Principal, part: bytes) -> str:
    """The account that a path names, if the principal reaches it."""
    if part == principal.account.encode():
        return principal.account
    account = requests.decode_segment(part)
    principal.check_account(account)
    return account if account == OPERATOR else check_account_id(account)


def _match(path: tuple[bytes, ...], parts: list[bytes]) -> list[str] | None:
    """The decoded parameters of a path, if it is that path."""
    words = []
    for expected, part in zip(path, parts, strict=True):
        if expected == b"{}":
            if not part:
                return None
            words.append(part)
        elif expected != part and expected != b"{account}":
            return None
    return [requests.decode_segment(word) for word in words]


def _too_large(bytes_max: int, close: bool) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body is too large; at most {bytes_max} bytes are taken.",
        {"close": True} if close else None,
    )
