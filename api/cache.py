"""Accounts as front ends know them: cached snapshots, by generation.

A create needs the workflow's uuid, version and code hash, but may not cost the Account a call.

* A snapshot younger than `SNAPSHOT_FRESH_MS` is used as it is; an older one is used and refreshed
  in the background; one older than `SNAPSHOT_STALE_MAX_MS` is refreshed first (if the Account
  does not answer, the old one is used: creates go on without it).
* A miss asks the Account once, however many wait, and calls of one front end to one Account
  are at least `SNAPSHOT_GAP_MS` apart: its load is bounded whatever people ask for.
* `WorkflowNotFound` is told only after a snapshot that was asked for after the question came.

A snapshot also says on which control plane the account is; `planes` is told. The snapshot of an
account that turns out to be elsewhere is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice

import msgspec

from ..gatekeeper.messages import ACCOUNT_KIND, AccountSnapshot, Settings, WorkflowRecord
from ..gatekeeper.planes import Plane
from ..gatekeeper.settings import ACCOUNT_ROW, NOTHING_SET
from ..runtime import limits
from ..runtime.errors import SystemFault, WorkflowNotFound
from ..runtime.ids import EntityRef
from .calls import Caller
from .planes import Planes
from .rates import CreateLimits


class _Cached:
    """One account. Times are the loop's, in seconds; `asked_at` is when the newest call began."""

    __slots__ = (
        "asked_at",
        "creates_per_second",
        "generation",
        "loading",
        "plane",
        "running_max",
        "seen_at",
        "settings",
        "workflows",
    )

    def __init__(self) -> None:
        self.workflows: dict[str, WorkflowRecord] = {}
        self.generation = 0
        self.plane: Plane = "v2"
        self.running_max = 0
        self.settings: dict[str, Settings] = {}
        self.creates_per_second = (limits.CREATES_PER_SECOND_MAX, limits.CREATES_PER_SECOND_MAX)
        self.seen_at: float | None = None
        self.asked_at = float("-inf")
        self.loading: asyncio.Task[None] | None = None


class AccountCache:
    """Snapshots of the accounts in use.

    Args:
        caller: for calls to Accounts.
        planes: where accounts are.
    """

    def __init__(self, caller: Caller, planes: Planes) -> None:
        self._caller = caller
        self._planes = planes
        planes.moved = self.forget
        self._accounts: OrderedDict[str, _Cached] = OrderedDict()

    async def workflow(self, account: str, name: str) -> WorkflowRecord:
        """The workflow's record, or `WorkflowNotFound`."""
        cached = self._cached(account)
        now = asyncio.get_running_loop().time()
        record = cached.workflows.get(name)
        if record is not None and cached.seen_at is not None:
            age_ms = (now - cached.seen_at) * 1000
            if age_ms <= limits.SNAPSHOT_FRESH_MS:
                return record
            if age_ms <= limits.SNAPSHOT_STALE_MAX_MS:
                self._load(account, cached)
                return record
        try:
            await self._asked_since(account, cached, now)
        except SystemFault:
            if record is None:
                raise
        record = cached.workflows.get(name)
        if record is None:
            raise WorkflowNotFound(f"there is no workflow {name!r}.", {"workflow": name})
        return record

    async def workflows(self, account: str) -> list[WorkflowRecord]:
        """All workflows of the account as of now, by name."""
        cached = self._cached(account)
        await self._asked_since(account, cached, asyncio.get_running_loop().time())
        return sorted(cached.workflows.values(), key=lambda record: record.name)

    async def running_max(self, account: str) -> int:
        """The account's limit of running instances as of now."""
        cached = self._cached(account)
        await self._asked_since(account, cached, asyncio.get_running_loop().time())
        return cached.running_max

    def create_limits(self, account: str, uuid: str) -> CreateLimits:
        """How many creates an account and a workflow take that have just been asked for."""
        cached = self._cached(account)
        own = cached.settings.get(ACCOUNT_ROW, NOTHING_SET).creates_per_second
        workflow = cached.settings.get(uuid, NOTHING_SET)
        of_workflow, queued = workflow.creates_per_second, workflow.queued_max
        default = cached.creates_per_second
        return CreateLimits(
            default[0] if own is None else own,
            default[1] if of_workflow is None else of_workflow,
            queued or limits.QUEUED_PER_WORKFLOW_MAX,
        )

    def settings(self, account: str, uuid: str) -> Settings:
        """What is set for a workflow that has just been asked for: its own, else its account's."""
        cached = self._cached(account)
        if not cached.settings:
            return NOTHING_SET
        mine = cached.settings.get(uuid, NOTHING_SET)
        all_ = cached.settings.get(ACCOUNT_ROW, NOTHING_SET)
        pairs = zip(msgspec.structs.astuple(mine), msgspec.structs.astuple(all_), strict=True)
        return Settings(*(value if value is not None else other for value, other in pairs))

    def own_settings(self, account: str, uuid: str) -> Settings:
        """What is set for a workflow itself that has just been asked for."""
        return self._cached(account).settings.get(uuid, NOTHING_SET)

    def forget(self, account: str) -> None:
        """Have the next use ask again: this front end has changed something."""
        if account in self._accounts:
            self._accounts[account].seen_at = None

    async def close(self) -> None:
        """End refreshes under way."""
        loading = [cached.loading for cached in self._accounts.values() if cached.loading]
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        self._accounts.clear()

    def _cached(self, account: str) -> _Cached:
        cached = self._accounts.get(account)
        if cached is None:
            cached = self._accounts[account] = _Cached()
            if len(self._accounts) > limits.ACCOUNTS_CACHED_MAX:
                self._drop_some(account)
        elif len(self._accounts) > 1:
            self._accounts.move_to_end(account)
        return cached

    def _drop_some(self, but: str) -> None:
        """Forget those that were used longest ago; not one that somebody waits for."""
        idle = (name for name, each in self._accounts.items() if each.loading is None)
        surplus = len(self._accounts) - limits.ACCOUNTS_CACHED_MAX
        for name in list(islice((name for name in idle if name != but), surplus)):
            del self._accounts[name]

    async def _asked_since(self, account: str, cached: _Cached, since: float) -> None:
        """Wait for an answer to a call that began at `since` or later."""
        while True:
            loading = self._load(account, cached)
            await asyncio.shield(loading)
            if cached.asked_at >= since:
                self._accounts.setdefault(account, cached)  # its settings are asked for next
                return

    def _load(self, account: str, cached: _Cached) -> asyncio.Task[None]:
        if cached.loading is None:
            cached.loading = asyncio.get_running_loop().create_task(self._refresh(account, cached))
            cached.loading.add_done_callback(_look_at_result)
        return cached.loading

    async def _refresh(self, account: str, cached: _Cached) -> None:
        loop = asyncio.get_running_loop()
        try:
            gap = cached.asked_at + limits.SNAPSHOT_GAP_MS / 1000 - loop.time()
            if gap > 0:
                await asyncio.sleep(gap)
            cached.asked_at = asked_at = loop.time()
            known = cached.generation if cached.seen_at is not None else -1
            snapshot = await self._asked(account, known)
            if known >= 0 and snapshot.plane.plane != cached.plane:  # its generations are others
                snapshot = await self._asked(account, -1)
            self._planes.note(account, snapshot.plane)
            cached.plane = snapshot.plane.plane
            if snapshot.workflows is not None:
                cached.workflows = {record.name: record for record in snapshot.workflows}
                cached.settings = snapshot.settings
                cached.creates_per_second = snapshot.creates_per_second
            cached.generation = snapshot.generation
            cached.running_max = snapshot.running_max
            cached.seen_at = asked_at
        finally:
            cached.loading = None

    async def _asked(self, account: str, known: int) -> AccountSnapshot:
        found: AccountSnapshot = await self._caller.call(
            AccountSnapshot,
            self._caller.deadline(limits.REQUEST_ATTEMPT_MS),
            EntityRef(ACCOUNT_KIND, account),
            "snapshot",
            known,
        )
        return found


def _look_at_result(task: asyncio.Task[None]) -> None:
    """A background refresh that fails is tried again on next use; it may not warn at exit."""
    if not task.cancelled():
        task.exception()
