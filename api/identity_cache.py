"""Accounts and tokens as front ends know them: one snapshot of the registry, by generation.

* A snapshot is at most `IDENTITY_STALE_MAX_MS` old when it is used, so what was revoked at one
  front end is refused at all others within that time. It is refreshed while it is in use, in the
  background; so no request waits for that but the first one after a pause.
* A token that the snapshot lacks may have been made a moment ago: it is refused only after a
  snapshot that was asked for later. Such calls are `SNAPSHOT_GAP_MS` apart.
* While the registry can't be asked (its shard is being opened again), the last snapshot is used
  until it is `IDENTITY_LOST_MAX_MS` old; then requests fail as unavailable, and open nothing.
"""

from __future__ import annotations

import asyncio

from ..gatekeeper.messages import (
    IDENTITY_KEY,
    IDENTITY_KIND,
    AccountInfo,
    IdentitySnapshot,
    TokenRecord,
)
from ..runtime import limits
from ..runtime.errors import SystemFault
from ..runtime.ids import EntityRef
from .calls import Caller

IDENTITY = EntityRef(IDENTITY_KIND, IDENTITY_KEY)
IDENTITY_PART = "identity"
"""What it is called among the parts of a server."""


class IdentityCache:
    """The snapshot. Times are the loop's, in seconds.

    Args:
        caller: for calls to the registry.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._accounts: dict[str, AccountInfo] = {}
        self._tokens: dict[str, TokenRecord] = {}
        self._generation = -1
        self._seen_at = float("-inf")
        """When the call that gave the snapshot began."""
        self._asked_at = float("-inf")
        self._not_before = float("-inf")
        """Calls that began earlier may lack what this front end has changed."""
        self._lost_at = float("-inf")
        """When a call last got no answer."""
        self._loading: asyncio.Task[None] | None = None

    async def token(self, token_id: str, *, patient: bool = True) -> TokenRecord | None:
        """A token that is not revoked.

        Args:
            token_id: its public part.
            patient: whether to ask for a newer snapshot before saying that there is none.
        """
        since = asyncio.get_running_loop().time()
        await self._freshen(since)
        found = self._tokens.get(token_id)
        if found is None and patient and self._seen_at < since:
            await self._asked_since(since)
            found = self._tokens.get(token_id)
        return found

    def fresh_tokens(self, now: float) -> dict[str, TokenRecord] | None:
        """All tokens, if that may be used as it is; the same mapping until one has changed."""
        fresh = (now - self._seen_at) * 1000 <= limits.IDENTITY_FRESH_MS
        return self._tokens if fresh else None

    async def accounts(self) -> dict[str, AccountInfo]:
        """All accounts as of now."""
        await self._asked_since(asyncio.get_running_loop().time())
        return self._accounts

    async def has_account(self, account: str) -> bool:
        """Whether an account exists. Accounts stay, so one that is known needs no look."""
        return account in self._accounts or account in await self.accounts()

    async def tokens(self) -> list[TokenRecord]:
        """All tokens that are not revoked, as of now."""
        await self._asked_since(asyncio.get_running_loop().time())
        return list(self._tokens.values())

    async def probe(self) -> None:
        """Return when the registry has answered from now on.

        Raises:
            SystemFault: it does not, within IDENTITY_CALL_MS.
        """
        await self._asked_since(asyncio.get_running_loop().time())

    def forget(self) -> None:
        """Have the next use ask again: this front end has changed something."""
        self._seen_at = self._lost_at = float("-inf")
        self._not_before = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End a refresh under way."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    async def _freshen(self, now: float) -> None:
        """Return once the snapshot may be used."""
        age_ms = (now - self._seen_at) * 1000
        if age_ms <= limits.IDENTITY_FRESH_MS:
            return
        is_lost = (now - self._lost_at) * 1000 <= 2 * limits.IDENTITY_CALL_MS
        age_max_ms = limits.IDENTITY_LOST_MAX_MS if is_lost else limits.IDENTITY_STALE_MAX_MS
        if age_ms <= age_max_ms:
            self._load()
            return
        try:
            await self._asked_since(now - limits.IDENTITY_STALE_MAX_MS / 1000)
        except SystemFault:
            if age_ms > limits.IDENTITY_LOST_MAX_MS:
                raise

    async def _asked_since(self, since: float) -> None:
        while self._seen_at < since:
            await asyncio.shield(self._load())

    def _load(self) -> asyncio.Task[None]:
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._refresh())
            self._loading.add_done_callback(_look_at_result)
        return self._loading

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            gap = self._asked_at + limits.SNAPSHOT_GAP_MS / 1000 - loop.time()
            if gap > 0:
                await asyncio.sleep(gap)
            self._asked_at = asked_at = loop.time()
            snapshot: IdentitySnapshot = await self._caller.call(
                IdentitySnapshot,
                self._caller.deadline(limits.IDENTITY_CALL_MS),
                IDENTITY,
                "snapshot",
                self._generation,
                attempt_ms=limits.IDENTITY_CALL_MS,
            )
            if snapshot.accounts is not None and snapshot.tokens is not None:
                self._accounts = {account.id: account for account in snapshot.accounts}
                self._tokens = {token.id: token for token in snapshot.tokens}
            self._generation = snapshot.generation
            self._lost_at = float("-inf")
            if asked_at >= self._not_before:
                self._seen_at = asked_at
        except SystemFault:
            self._lost_at = loop.time()
            raise
        finally:
            self._loading = None


def _look_at_result(task: asyncio.Task[None]) -> None:
    """A background refresh that fails is tried again on next use; it may not warn at exit."""
    if not task.cancelled():
        task.exception()
