"""How the client sends calls over HTTP: pooled connections, repeats that take effect once.

A call is repeated, with the same Idempotency-Key, when no connection came about, the connection
broke, or the server answered 429, 502, 503 or 504; with backoff and jitter, honouring Retry-After,
until its time is up. Then the last typed error is raised: `ServerUnreachable` if nothing was ever
sent, `OutcomeUnknown` if a change may have taken effect.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import aiohttp
import msgspec
from yarl import URL

from ..runtime import limits
from ..runtime.entropy import Entropy
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
from ..runtime.guarded import shown
from .client_checks import refuse
from .client_values import CallOptions

T = TypeVar("T")
_RETRIED = frozenset({429, 502, 503, 504})
_BY_NUMBER: dict[int, type[ToqueError]] = {
    known.number: known
    for known in (Unauthorized, WorkflowNotFound, InstanceNotFound, InstanceAlreadyExists)
}
"""For servers that speak the standard without toque's extension."""
_ANSWER_SLACK_S = 60.0
_CONNECT_S = 10.0
_LARGE_BODY_BYTES = 512 * limits.KIB  # aiohttp sends larger ones in pieces if they are a stream
_UNSEEN = re.compile(r"[\x00-\x20\x7f]")
_JSON = {"Content-Type": "application/json"}


class _Extension(msgspec.Struct, frozen=True):
    code: str
    data: dict[str, Any] = {}


class _Failure(msgspec.Struct, frozen=True):
    code: int
    message: str
    toque: _Extension | None = None


class _FailureEnvelope(msgspec.Struct, frozen=True):
    errors: list[_Failure]


_failed = msgspec.json.Decoder(_FailureEnvelope)


def check_url(url: object) -> str:
    """A server's url without its last slash, or `InvalidArgument`."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InvalidArgument(
            f"url {shown(url, 200)} must start with http:// or https://. "
            "Right: 'http://127.0.0.1:8787'."
        )
    try:
        parts = URL(url)
    except ValueError:
        parts = URL()
    if parts.user is not None:
        raise InvalidArgument("the url holds a user name; give a token instead. Right: token='...'")
    if not parts.host or _UNSEEN.search(url):
        raise InvalidArgument(f"url {shown(url, 200)} is not valid; write http://127.0.0.1:8787.")
    return url.rstrip("/")


def check_token(token: object) -> str:
    """A token that may stand in a header, or `InvalidArgument`, which does not show it."""
    if not isinstance(token, str):
        refuse("token", type(token), "a text", "token='tq_...'")
    if not token.isascii() or _UNSEEN.search(token):
        raise InvalidArgument(
            "the token holds spaces, control characters or such as are not ASCII, which no "
            "token does; check TOQUE_TOKEN."
        )
    return token


class _Pool:
    """The connections, opened when they are first needed; `retries`: calls made again on them."""

    def __init__(self, headers: dict[str, str], connections_max: int) -> None:
        self._headers = headers
        self._connections_max = connections_max
        self.retries = 0
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """The session; a new one after a close."""
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._connections_max, keepalive_timeout=60, ttl_dns_cache=60
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


class HttpTransport:
    """Sends calls to one server.

    Args:
        origin: the server.
        headers: of each call.
        entropy: jitter between tries.
        retry_for_s: how long a call is repeated.
        connections_max: how many are open at once, at most.

    Attributes:
        timeout_s: of a call with its repeats; None: each try has as long as the server may take.
    """

    def __init__(
        self,
        origin: str,
        headers: dict[str, str],
        entropy: Entropy,
        retry_for_s: float,
        connections_max: int = limits.CLIENT_CONNECTIONS_MAX,
    ) -> None:
        self._origin = origin
        self._entropy = entropy
        self._retry_for_s = retry_for_s
        self._pool = _Pool(headers, connections_max)
        self.timeout_s: float | None = None

    @property
    def retries(self) -> int:
        """How often calls over these connections were made again."""
        return self._pool.retries

    def with_options(self, options: CallOptions) -> HttpTransport:
        """The same over the same connections, with other times."""
        other = HttpTransport(self._origin, {}, self._entropy, self._retry_for_s)
        other._pool = self._pool
        other.timeout_s = self.timeout_s if options.timeout_s is None else options.timeout_s
        if options.retry_for_s is not None:
            other._retry_for_s = options.retry_for_s
        return other

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def call(
        self,
        decoder: msgspec.json.Decoder[T],
        method: str,
        url: str,
        body: bytes | None = None,
        request_id: str | None = None,
        wait_ms: int = 0,
    ) -> T:
        """The decoded answer of a call, repeated while that can help."""
        target = URL(url, encoded=True)
        headers = None if request_id is None else {**_JSON, "Idempotency-Key": request_id}
        loop = asyncio.get_running_loop()
        began = loop.time()
        end = None if self.timeout_s is None else began + self.timeout_s
        until = began + self._retry_for_s
        if end is not None:
            until = min(until, end)
        tries, maybe_done = 0, False
        while True:
            left = _ANSWER_SLACK_S + wait_ms / 1000
            if end is not None:
                left = max(0.001, min(left, end - loop.time()))
            pause_s = 0.0
            try:
                status, raw, pause_s = await self._try(method, target, headers, body, left)
                if 200 <= status < 300:
                    return self._read(decoder, raw, request_id is not None)
                error = _error_of(status, raw)
                if status not in _RETRIED:
                    raise error
                maybe_done = maybe_done or not error_is_clean(error)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as fault:
                error = ServerUnreachable(f"no connection to {self._origin}: {fault}")
            except (aiohttp.ClientError, TimeoutError, OSError) as fault:
                maybe_done = True
                told = f"{type(fault).__name__} {fault}".strip()
                error = OutcomeUnknown(f"the connection failed before the answer came: {told}")
            pause_s = max(pause_s, self._backoff_s(tries))
            tries += 1
            if loop.time() + pause_s >= until:
                raise _verdict(error, request_id is not None and maybe_done)
            self._pool.retries += 1
            await asyncio.sleep(pause_s)

    def _read(self, decoder: msgspec.json.Decoder[T], raw: bytes, changes: bool) -> T:
        """An answer of success: of a toque server, if the url is right."""
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            kind = OutcomeUnknown if changes else ServerUnreachable
            raise kind(
                f"what answers at {self._origin} is no toque server, or one of another version; "
                f"check the url. Its answer is not as expected ({fault}): {shown(raw, 80)}"
            ) from None

    async def _try(
        self,
        method: str,
        url: URL,
        headers: dict[str, str] | None,
        body: bytes | None,
        timeout_s: float,
    ) -> tuple[int, bytes, float]:
        """One try: the status, the body, and for how long the server asks to wait."""
        large = body is not None and len(body) > _LARGE_BODY_BYTES
        async with self._pool.session().request(
            method,
            url,
            allow_redirects=False,
            data=io.BytesIO(body) if large and body is not None else body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S),
        ) as answer:
            raw = await answer.read()
            known = answer.headers
            return answer.status, raw, _retry_after_s(known.get("Retry-After"), known.get("Date"))

    async def parts(self, url: str, what: str) -> AsyncIterator[bytes]:
        """The parts of an answer that is a stream of bytes; nothing at all if it is none."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_S, sock_read=_ANSWER_SLACK_S
        )
        try:
            async with self._pool.session().get(
                URL(url, encoded=True), allow_redirects=False, timeout=timeout
            ) as answer:
                if answer.status != 200:
                    raise _error_of(answer.status, await answer.read())
                if answer.content_type != "application/octet-stream":
                    raise NotAStream
                async for part in answer.content.iter_chunked(limits.STREAM_PART_BYTES):
                    yield part
        except (aiohttp.ClientError, TimeoutError, OSError) as fault:
            raise ServerUnreachable(f"{what} broke off: {type(fault).__name__} {fault}") from None

    def _backoff_s(self, tries: int) -> float:
        most = min(limits.CLIENT_RETRY_MAX_MS, limits.CLIENT_RETRY_MIN_MS << min(tries, 16))
        return most * (0.5 + self._entropy.random() / 2) / 1000


class NotAStream(Exception):
    """The answer is no stream of bytes."""


def error_is_clean(error: ToqueError) -> bool:
    """Whether the error says that the call did not take effect."""
    return error.retryable or error.overloaded


def _verdict(error: ToqueError, unknown: bool) -> ToqueError:
    if unknown and not isinstance(error, OutcomeUnknown):
        return OutcomeUnknown(
            f"the change may or may not have taken effect; last: {error}", {"last": error.code}
        )
    return error


def _retry_after_s(text: str | None, date: str | None) -> float:
    """Seconds that the server asks to wait: given as such, or as a time beside its own clock's."""
    if not text:
        return 0.0
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        apart = parsedate_to_datetime(text) - parsedate_to_datetime(date or "")
    except (ValueError, TypeError):
        return 0.0  # our own backoff does
    return max(0.0, apart.total_seconds())


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
