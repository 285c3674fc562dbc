"""AccountOld's part in the move to V2: it stops, is taken over, heals and retires.

Between `old_kitchen` and `account_old`. Each step is one commit, and may be asked for again: the
second time it gives the first answer. What an aborted migration says later changes nothing.

*Exact*: `freeze` sets what it may hold to what it holds, in one commit with the plane. Until the
Gatekeeper's lease comes it starts an instance only in a slot that another one left; if it held
more than it might, since its limit was lowered, not even that.

*Abort* is possible until V2 makes something: whoever does asks here first (`ask`), and that it
asked is durable before it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec

from ..engines.views import IndexRow, PageRequest
from ..gatekeeper.account import Account
from ..gatekeeper.handover import clear_rows, read_part
from ..gatekeeper.planes import StaleMigration, requires
from ..runtime import limits
from ..runtime.errors import InvalidArgument
from .messages import Asked, Frozen, OldStatus, RegistryPart
from .old_kitchen import OldKitchen
from .old_pages import old_counts_query, old_page_query
from .old_rows import INDEX_TABLES, entry_of
from .refusals import AbortRefused


class MovingAccount(OldKitchen):
    """See the module."""

    # --- freeze, route, abort ---------------------------------------------------------------

    def freeze(self, migration_id: str) -> Frozen:
        """Stop creates, and start no more than run now: the lease that V2 begins with.

        Raises:
            StaleMigration: the account is not on V1, another migration has it, or this one was
                given up.
        """
        planes = self._planes
        planes.check(migration_id)
        if self.plane != "v1":
            self._check_current(migration_id)
            assert self._move.frozen is not None, "frozen without a record of it"
            return self._move.frozen
        with self._event():
            frozen = self._frozen(migration_id)
        self._after_event()
        return frozen

    def _frozen(self, migration_id: str) -> Frozen:
        now_ms = self.ctx.clock.now_ms()
        roster = self._roster
        target = min(roster.holding, roster.target)
        roster.on_lease(roster.lease_version + 1, target, now_ms)
        frozen = Frozen(
            migration_id,
            now_ms,
            roster.lease_version,
            roster.holding,
            roster.queued,
            roster.waiting,
            roster.paused,
            self._index.unborn,
            self._registry.running_max,
            self._index.weight,
            target,
        )
        self._put_move(frozen=frozen, first_create_ms=0, weight=frozen.workflows)
        self._planes.write(plane="moving", migration_id=migration_id, healing=False)
        return frozen

    @requires("moving", "v2")
    def registry_part(self, migration_id: str, after: str | None) -> RegistryPart:
        """The next rows of the registry, which changes no more.

        Raises:
            StaleMigration, InvalidArgument
        """
        self._check_current(migration_id)
        try:
            return read_part(self.ctx, Account.REGISTRY, after)
        except (msgspec.DecodeError, IndexError):
            raise InvalidArgument(f"{after!r:.80} is no place in a registry.") from None

    @requires("moving", "v2")
    def route(self, migration_id: str) -> None:
        """Be a SousChef of V2 from now on. Account and Gatekeeper have taken over.

        Raises:
            StaleMigration
        """
        self._check_current(migration_id)
        if self.plane == "v2":
            return
        with self._event():
            self._answers_from = self._call_seq
            self._planes.write(plane="v2", healing=True)
            self._roster.set_leased(True)
        self._after_event()

    def abort(self, migration_id: str) -> None:
        """Be on V1 again.

        Raises:
            AbortRefused: V2 has made something already.
            StaleMigration: another migration has the account.
        """
        state = self._planes.state
        if state.plane == "v1" or migration_id <= state.aborted:
            self._planes.give_up(migration_id)
            return
        self._check_current(migration_id)
        since_ms = self._move.first_create_ms
        if state.plane == "v2" and (since_ms or not state.healing):
            why = (
                "V2 has taken creates or changes already: V1 knows nothing of them"
                if since_ms
                else "V2 has healed the account: since then V1 is not asked, and knows not all"
            )
            raise AbortRefused(why, {"since_ms": since_ms})
        with self._event():
            self._planes.give_up(migration_id, plane="v1", migration_id="", healing=False)
            self._put_move(frozen=None, first_create_ms=0)
            self._roster.set_leased(False)
            self._obey_own_limit()
        self._after_event()

    # --- healing ----------------------------------------------------------------------------

    @requires("v2")
    def ask(self, key: str, creates: bool) -> Asked | Awaitable[Asked]:
        """Whether an instance is unborn here; then it is born before this is answered.

        Args:
            key: the Engine's; empty: V2 is about to change the registry.
            creates: V2 is about to make or change something, so there is no way back any more.
        """
        if creates and self._planes.state.healing and not self._move.first_create_ms:
            self._put_move(first_create_ms=max(1, self.ctx.clock.now_ms()))
        entry = self._index.get(key) if key else None
        if entry is None or not entry.unborn:
            return Asked(False, self._planes.state.healing)
        return self._ask_birth(key)

    async def _ask_birth(self, key: str) -> Asked:
        await self._born(key)
        return Asked(True, self._planes.state.healing)

    @requires("v2")
    async def heal(self, migration_id: str) -> int:
        """Make the Engines of the next who are unborn; gives how many are left.

        Raises:
            StaleMigration
        """
        self._check_current(migration_id)
        most = limits.V1_BIRTHS_PER_HEAL_MAX
        page = self._index.unborn_page(self._healed_to, most)
        # Who can't be born now, since a shard is away, keeps nobody else waiting.
        self._healed_to = page[-1][0] if len(page) == most else None
        await asyncio.gather(*(self._born(key) for _, key in page), return_exceptions=True)
        return self._index.unborn

    @requires("v2")
    def healed(self, migration_id: str) -> None:
        """Nobody is unborn, and nobody needs to ask any more.

        Raises:
            StaleMigration: some are.
        """
        self._check_current(migration_id)
        if not self._planes.state.healing:
            return
        unborn = self._index.unborn
        if unborn:
            raise StaleMigration(
                f"account {self._account!r} has {unborn} instances without an Engine; heal them "
                "first.",
                {"account": self._account, "migration_id": migration_id, "reason": "unborn"},
            )
        self._planes.write(healing=False)

    @requires("v1", "v2")
    async def bear(self, workflow_uuid: str) -> int:
        """All of a workflow are to be terminated: have the next who are unborn be born.

        Gives how many are left: on V1 none, as nothing is repaired there.
        """
        if self.plane == "v1":
            return 0
        births: list[str] = []
        after = None
        while self._index.unborn_of(workflow_uuid) and len(births) < limits.V1_BIRTHS_PER_HEAL_MAX:
            page = self._index.unborn_page(after, limits.V1_BIRTHS_PER_HEAL_MAX)
            births += (key for place, key in page if place[2] == workflow_uuid)
            if not page:
                break
            after = page[-1][0]
            await asyncio.sleep(0)
        await asyncio.gather(*map(self._born, births), return_exceptions=True)
        return self._index.unborn_of(workflow_uuid)

    @requires("v1", "v2")
    async def drop_unborn(self, workflow_uuid: str) -> int:
        """A workflow is deleted: nobody of it who is unborn is to be born. Gives how many."""
        dropped, after = 0, None
        while page := self._index.unborn_page(after, limits.V1_BIRTHS_PER_HEAL_MAX):
            for place, key in page:
                if place[2] == workflow_uuid and key not in self._births:
                    self._index.drop(key)
                    dropped += 1
            after = page[-1][0]
            await asyncio.sleep(0)
        return dropped

    async def unborn_page(self, request: PageRequest) -> list[IndexRow]:
        """The part of a page of a list that data shards don't know: committed rows only."""
        return await self._page(request, unborn=True)

    async def unborn_counts(self, workflow_uuid: str, id_prefix: str) -> dict[str, int]:
        """Instances that data shards don't know, by status."""
        return await self._counts(workflow_uuid, id_prefix, unborn=True)

    # --- the end ----------------------------------------------------------------------------

    @requires("v2")
    def retire(self, migration_id: str) -> bool | Awaitable[bool]:
        """Delete the registry once no instance is left; gives whether that is so.

        An instance that takes the id of a deleted one of V1 may still report here, and is served.

        Raises:
            StaleMigration
        """
        self._check_current(migration_id)
        if self._roster.live or self._index.size or self._planes.state.healing:
            return False
        return self._retire()

    async def _retire(self) -> bool:
        await clear_rows(self.ctx, (*Account.REGISTRY, *INDEX_TABLES))
        return True

    def status(self) -> OldStatus:
        """How it stands."""
        roster, state = self._roster, self._planes.state
        return OldStatus(
            state.plane,
            state.migration_id,
            state.healing,
            self._index.unborn,
            roster.queued,
            roster.holding,
            roster.waiting,
            roster.paused,
            self._index.ended,
            roster.target,
            self._index.last_end_ms,
            self._move.first_create_ms,
            self._creates,
            self._refused,
        )

    # --- inside -----------------------------------------------------------------------------

    def _check_current(self, migration_id: str) -> None:
        """Refuse what another migration says than the one that froze the account."""
        self._planes.check(migration_id)
        if self._planes.state.migration_id != migration_id:
            raise StaleMigration(
                f"migration {migration_id!r:.80} of account {self._account!r} can't go on: it is "
                "not the one that froze the account.",
                {"account": self._account, "migration_id": migration_id, "reason": "another"},
            )

    async def _page(self, request: PageRequest, *, unborn: bool) -> list[IndexRow]:
        if not 0 < request.limit <= limits.LIST_PAGE_ROWS_MAX:
            raise InvalidArgument(f"a page takes 1 to {limits.LIST_PAGE_ROWS_MAX} rows.")
        query, params = old_page_query(self._key, request, unborn=unborn)
        rows = await self._env.store.query(query, params)
        return [entry_of(row).row() for row in rows]

    async def _counts(self, uuid: str, id_prefix: str, *, unborn: bool) -> dict[str, int]:
        if not id_prefix:
            if not unborn:
                return self._index.counts(uuid)
            found = self._index.unborn_of(uuid)
            return {"queued": found} if found else {}
        query, params = old_counts_query(self._key, uuid, id_prefix, unborn=unborn)
        return dict(await self._env.store.query(query, params))
