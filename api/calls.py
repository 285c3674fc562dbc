"""Calls from a front end to entities, repeated until the request's deadline.

A lost reply, a shard that moves or a store that reopens is weather: the same call is made again,
with the same request id in its arguments, so it takes effect once and the second call gets the
first answer. A shard that is known to be broken is waited for only shortly, and so is an instance
that has no Engine yet. At the deadline the
caller learns what is known: `OutcomeUnknown` if a changing call may have taken effect, otherwise
the last error.

A call that is refused because the account is on another control plane did nothing. It is made
again too: the router (`planes`) has learnt by then where it goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

import msgspec

from ..gatekeeper.planes import InstanceUnborn, WrongControlPlane
from ..runtime import limits
from ..runtime.entropy import Entropy
from ..runtime.errors import (
    EntityReset,
    Fenced,
    OutcomeUnknown,
    RuntimeClosed,
    ShardUnavailable,
    StoreFailed,
    SystemFault,
    ToqueError,
)
from ..runtime.ids import ACCOUNT_OLD_KIND, EntityRef

T = TypeVar("T")
Decode = Callable[[msgspec.Raw], Any]
_WEATHER = (ShardUnavailable, OutcomeUnknown, Fenced, EntityReset, StoreFailed, InstanceUnborn)
_PASSING = (*_WEATHER, WrongControlPlane)


@lru_cache(maxsize=256)
def _decoder_for(expected: Any) -> Decode:
    return msgspec.msgpack.Decoder(expected).decode


class RouterCall(Protocol):
    """How a router calls."""

    def __call__(
        self,
        ref: EntityRef,
        method: str,
        *args: Any,
        timeout_ms: int | None = None,
        decode: Decode = ...,
    ) -> asyncio.Future[Any]:
        """Call an entity; the future gives what `decode` makes of its MessagePack answer."""


class RouterPort(Protocol):
    """What the front end needs of the router (`runtime.rpc`)."""

    @property
    def call(self) -> RouterCall: ...


class Caller:
    """Makes calls and repeats them until a deadline.

    Args:
        router: where calls go.
        entropy: jitter between tries.
        refused: told of each call that was refused because the account is elsewhere.
    """

    def __init__(
        self,
        router: RouterPort,
        entropy: Entropy,
        refused: Callable[[WrongControlPlane], None] = lambda error: None,
    ) -> None:
        self._router = router
        self._entropy = entropy
        self._refused = refused
        self._is_closed = False

    def close(self) -> None:
        """Refuse calls from now on (`RuntimeClosed`)."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeClosed("the runtime is closed; use its client inside `async with`.")

    def deadline(self, after_ms: int = limits.REQUEST_DEADLINE_MS) -> float:
        """The loop's time `after_ms` from now."""
        return asyncio.get_running_loop().time() + after_ms / 1000

    async def call(
        self,
        expected: type[T] | Any,
        deadline: float,
        ref: EntityRef,
        method: str,
        *args: Any,
        attempt_ms: int = limits.REQUEST_ATTEMPT_MS,
        changes: bool = False,
        begun: asyncio.Future[T] | None = None,
    ) -> T:
        """The entity's answer, decoded as `expected`.

        Args:
            expected: type of the result.
            deadline: loop time after which nothing is tried again.
            attempt_ms: how long one try may take (a wait takes long by nature).
            changes: whether the call changes anything, so that its loss matters.
            begun: the first try, if it has been made.

        Raises:
            WrongControlPlane: AccountOld itself was called, and the account is elsewhere; see
                `routed`. Of other entities: the account has moved until the deadline.
        """
        loop = asyncio.get_running_loop()
        decode = _decoder_for(cast(Any, expected))
        self._check_open()
        tries = 0
        maybe_done = False
        patience = 0.0
        while True:
            left_ms = int((deadline - loop.time()) * 1000)
            try:
                if begun is None:
                    timeout_ms = max(1, min(attempt_ms, left_ms))
                    begun = self._router.call(
                        ref, method, *args, timeout_ms=timeout_ms, decode=decode
                    )
                result = await begun
            except WrongControlPlane as error:
                begun = None
                if ref.kind == ACCOUNT_OLD_KIND:
                    raise
                await self._elsewhere(error, tries, deadline)
                tries += 1
            except _WEATHER as error:
                begun = None
                maybe_done = maybe_done or not error.retryable
                # who answers knows that it will take longer, perhaps for ever
                if "broken" in error.data or isinstance(error, InstanceUnborn):
                    patience = patience or loop.time() + limits.REQUEST_BROKEN_MAX_MS / 1000
                    deadline = min(deadline, patience)
                pause = self._pause(tries)
                if loop.time() + pause >= deadline:
                    raise self._verdict(error, ref, method, changes and maybe_done) from error
                tries += 1
                await asyncio.sleep(pause)
            else:
                return result

    async def call_each(
        self,
        expected: type[T] | Any,
        deadline: float,
        method: str,
        calls: Sequence[tuple[EntityRef, Any]],
        *,
        attempt_ms: int = limits.REQUEST_ATTEMPT_MS,
        changes: bool = False,
    ) -> list[T | BaseException]:
        """Calls of many entities with one argument each, sent together; what each gave or raised.

        Args:
            calls: whom, and the argument.
            expected, deadline, method, attempt_ms, changes: as for `call`.
        """
        self._check_open()
        left_ms = int((deadline - asyncio.get_running_loop().time()) * 1000)
        timeout_ms = max(1, min(attempt_ms, left_ms))
        decode = _decoder_for(cast(Any, expected))
        call = self._router.call
        begun = [
            call(ref, method, argument, timeout_ms=timeout_ms, decode=decode)
            for ref, argument in calls
        ]
        found: list[T | BaseException] = []
        lost: list[int] = []
        try:
            for place, future in enumerate(begun):
                try:
                    found.append(await future)
                except ToqueError as error:
                    found.append(error)
                    if isinstance(error, _PASSING):
                        lost.append(place)
        finally:
            for future in begun[len(found) :]:  # the caller was cancelled
                future.cancel()
        again = await asyncio.gather(
            *(
                self.call(
                    expected,
                    deadline,
                    calls[place][0],
                    method,
                    calls[place][1],
                    attempt_ms=attempt_ms,
                    changes=changes,
                    begun=begun[place],
                )
                for place in lost
            ),
            return_exceptions=True,
        )
        for place, result in zip(lost, again, strict=True):
            found[place] = result
        return found

    async def routed(self, deadline: float, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives, which looks where the account is and calls AccountOld if it is there.

        It is done again if the account turns out to be elsewhere.
        """
        tries = 0
        while True:
            try:
                return await work()
            except WrongControlPlane as error:
                await self._elsewhere(error, tries, deadline)
            tries += 1

    async def _elsewhere(self, error: WrongControlPlane, tries: int, deadline: float) -> None:
        """Return when a call that was refused for its plane may be made again, or raise."""
        self._refused(error)
        pause = 0.0
        if tries or error.data["is"] == "moving":
            pause = min(self._pause(tries), limits.PLANE_MOVING_RETRY_MAX_MS / 1000)
        if asyncio.get_running_loop().time() + pause >= deadline:
            raise type(error)(error.message, error.data) from error
        await asyncio.sleep(pause)

    def _pause(self, tries: int) -> float:
        ceiling = min(limits.REQUEST_RETRY_MAX_MS, limits.REQUEST_RETRY_MIN_MS << min(tries, 16))
        return ceiling * (0.5 + self._entropy.random() / 2) / 1000

    @staticmethod
    def _verdict(error: SystemFault, ref: EntityRef, method: str, unknown: bool) -> SystemFault:
        if not unknown:
            return type(error)(error.message, error.data)
        return OutcomeUnknown(
            f"no answer to {method} came in time; it may or may not have taken effect. Send it "
            "again with the same Idempotency-Key to learn which.",
            {"method": method},
        )
