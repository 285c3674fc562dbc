"""Open a shard, and open it again and again while that fails; refuse calls meanwhile.

A start that cannot succeed (the caller's fault, or an author's) is not tried again. Everything
else is, with backoff: a full disk, say, has room again one day. While nobody can open a shard, a
`refusing_server` answers each call at once with `ShardUnavailable`, which says why.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar, cast

from . import limits
from .codec import pack
from .errors import AuthorError, CallerError, ShardUnavailable, StoreFailed, ToqueError, to_wire
from .messages import Call
from .rpc import NO_OWNER, Answer, ShardServer
from .store import Store

T = TypeVar("T")
OnFailed = Callable[[BaseException, bool], None]
"""`(error, final)`: an attempt failed, for good or not."""


async def keep_opening(open_once: Callable[[], Awaitable[T]], on_failed: OnFailed) -> T | None:
    """What `open_once` gives as soon as it succeeds; None if it never can."""
    backoff_ms = limits.SHARD_REOPEN_MIN_MS
    while True:
        try:
            return await open_once()
        except (CallerError, AuthorError) as error:
            on_failed(error, True)
            return None
        except (Exception, SystemExit) as error:  # a user's file may call sys.exit
            on_failed(error, False)
        await asyncio.sleep(backoff_ms / 1000)
        backoff_ms = min(backoff_ms * 2, limits.SHARD_REOPEN_MAX_MS)


def check_room(path: Path) -> None:
    """See that a store has room to write. Opening one may succeed on a disk that has none.

    Raises:
        StoreFailed: there is none.
    """
    scratch = path.with_name(f"{path.name}.room")
    try:
        descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, limits.STORE_ROOM_MIN_BYTES)
        finally:
            os.close(descriptor)
            os.unlink(scratch)
    except OSError as error:
        raise StoreFailed(
            f"there is no room for {path.name}: {error.strerror}.", {"reason": str(error)}
        ) from error


class _NoStore:
    """What a session asks of a store, where there is none."""

    epoch = NO_OWNER

    def verify_owner(self) -> None:
        """Nobody owns; refusals alone go out."""


class _Refusing:
    """Answers every call with one error."""

    def __init__(self, error: ToqueError) -> None:
        self.store = cast(Store, _NoStore())
        self._body = pack(to_wire(error))

    def deliver(self, call: Call, answer: Answer) -> None:
        answer(call.id, False, self._body)


def refusing_server(
    shard: str, why: str, loop: asyncio.AbstractEventLoop, *, final: bool = False
) -> ShardServer:
    """A server for a shard that can't be opened just now.

    Args:
        shard: its name.
        why: what its callers are told.
        loop: the event loop.
        final: it is not tried again.
    """
    state = "stays closed" if final else "is being opened again"
    error = ShardUnavailable(f"shard {shard} {state}: {why}", {"shard": shard, "broken": why})
    return ShardServer(_Refusing(error), loop)
