"""AccountOld: control plane V1 in one entity, as the origin of a migration and as a baseline.

One for each account that was made on V1: registry, coordinator, queue and rate limiter of all its
workflows. Every create, every operation and every list goes through it, so the account is as fast
as one entity. Its faults are V1's, on purpose:

* It acknowledges an instance *before* there is an Engine, and tells the Engine once. If that one
  message is lost the instance is queued for ever; `unborn` in its index says so.
* 4,500 slots, and 100 creates in 10 s.

Each method is guarded by the plane that it is for: what comes for another is refused, and is sent
elsewhere by whoever routed it. The move to V2 is in `old_moves`; after it this is a SousChef.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec

from ..engines.ports import ENGINE_KIND
from ..engines.rows import check_same, content_of
from ..engines.views import CreateRequest, IndexRow, InstanceView, PageRequest, retention_of
from ..gatekeeper.messages import (
    AccountSnapshot,
    Deployed,
    DeployedWorkflow,
    LimitsChange,
    ScriptRecord,
    VersionRecord,
    WorkflowRecord,
)
from ..gatekeeper.planes import InstanceUnborn, PlaneInfo, requires
from ..gatekeeper.refusals import RateLimited
from ..runtime import limits
from ..runtime.errors import (
    InstanceAlreadyExists,
    InstanceNotFound,
    InvalidArgument,
    ToqueError,
    WorkflowNotFound,
)
from ..runtime.ids import ACCOUNT_OLD_KIND, EntityRef, check_instance_id, split_engine_key
from .messages import Forwarded, OldCreate
from .old_moves import MovingAccount
from .old_rows import Entry, queued_view

FORWARDED = frozenset(
    {
        "cancel",
        "delete",
        "events",
        "pause",
        "read_stream",
        "restart",
        "resume",
        "send_event",
        "step_output",
        "terminate",
        "view",
        "wait",
        "waiting",
    }
)
"""What front ends ask of Engines, which on V1 goes through here."""


class AccountOld(MovingAccount):
    """See the module; its key is `ids.old_key(account)`."""

    KIND = ACCOUNT_OLD_KIND

    def begin(self) -> None:
        """Make the account one of V1, if it is not yet. Before it is used (`Account.set_plane`)."""
        state = self._planes.state
        if state.plane == "v2" and not state.migration_id:
            self._planes.write(plane="v1")
            self._obey_own_limit()

    # --- instances --------------------------------------------------------------------------

    @requires("v1")
    def create(self, create: OldCreate) -> InstanceView | Awaitable[Any]:
        """Take an instance into the index and answer; then have its Engine made.

        Raises:
            RateLimited, InstanceAlreadyExists, RequestIdReused, InvalidId, WorkflowNotFound:
                nothing was written.
        """
        uuid = self._checked(create.key)
        request = create.request
        entry = self._index.get(create.key)
        if entry is None:
            return self._take(create.key, uuid, request)
        if request.request_id and request.request_id == entry.request_id:
            content = content_of(request.params, request.retention)
            check_same(request.request_id, entry.content, content)
            return self._again(create.key, entry, request)
        if entry.unborn:
            raise InstanceAlreadyExists(f"instance {entry.id!r} exists already.")
        return self._take_over(create.key, uuid, request)

    def _checked(self, key: str) -> str:
        account, uuid, instance_id = split_engine_key(key)
        if account != self._account:
            raise InvalidArgument(f"{key!r:.80} is no instance of account {self._account!r}.")
        check_instance_id(instance_id)
        if not self._registry.has(uuid):
            raise WorkflowNotFound("the workflow is not there, or not any more.")
        return uuid

    def _take(self, key: str, uuid: str, request: CreateRequest) -> InstanceView | Awaitable[Any]:
        now_ms = self.ctx.clock.now_ms()
        self._admit(now_ms)
        success_ms, other_ms = retention_of(request, self._env.retention)
        run_id = self.ctx.entropy.new_id()
        asked = msgspec.structs.replace(request, souschefs=0, run_id=run_id, created_ms=now_ms)
        kept = msgspec.structs.replace(asked, wait_ms=0)
        entry = Entry(
            uuid=uuid,
            id=split_engine_key(key)[2],
            created_ms=now_ms,
            status="queued",
            started_ms=None,
            ended_ms=None,
            modified_ms=now_ms,
            version_id=request.version_id,
            source=request.source,
            unborn=True,
            run_id=run_id,
            seq=0,
            expires_ms=0,
            success_ms=success_ms,
            other_ms=other_ms,
            request_id=request.request_id,
            content=content_of(request.params, request.retention),
        )
        self._index.add(entry, kept)
        self._creates += 1
        self._put_rate()
        view = queued_view(entry, request)
        lost = self._env.lost_births
        if lost and self._creates % lost == 0:
            return view
        birth = self._bear(key, asked)
        return self._at_end(birth, view) if request.wait_ms else view

    def _admit(self, now_ms: int) -> None:
        wait_ms = self._window.admit(now_ms)
        if wait_ms:
            self._refused += 1
            most, seconds = self._window.most, limits.V1_CREATES_WINDOW_MS // 1_000
            raise RateLimited(
                f"this account is on control plane V1, which takes {most} creates in {seconds} s; "
                f"try again in {max(0.1, wait_ms / 1_000):.1f} s.",
                {"of": "account", "limit": most, "retry_after_ms": wait_ms},
            )

    async def _at_end(self, birth: asyncio.Future[Any], view: InstanceView) -> Any:
        try:
            return await birth
        except ToqueError:
            return view

    def _again(
        self, key: str, entry: Entry, request: CreateRequest
    ) -> InstanceView | Awaitable[Any]:
        """The same create once more: the Engine answers if it is there."""
        if entry.unborn:
            return queued_view(entry, request)
        asked = msgspec.structs.replace(request, souschefs=0)
        timeout_ms = request.wait_ms + limits.CONTROL_CALL_TIMEOUT_MS
        ref = EntityRef(ENGINE_KIND, key)
        return self.ctx.call(ref, "create", asked, timeout_ms=timeout_ms)

    async def _take_over(self, key: str, uuid: str, request: CreateRequest) -> Any:
        """The index has such an instance. If its Engine is gone, what it says is old."""
        engine = EntityRef(ENGINE_KIND, key)
        try:
            await self.ctx.call(
                engine, "view", False, False, timeout_ms=limits.CONTROL_CALL_TIMEOUT_MS
            )
        except InstanceNotFound:
            entry = self._index.get(key)
            if entry is not None and not entry.unborn:
                self._index.drop(key)
            again = self.create(OldCreate(key, request))
            return again if isinstance(again, InstanceView) else await again
        raise InstanceAlreadyExists(f"instance {split_engine_key(key)[2]!r} exists already.")

    @requires("v1")
    def forward(self, told: Forwarded) -> Any:
        """Have an Engine do something, and give what it answers.

        Raises:
            InstanceUnborn: there is no Engine yet.
            InvalidArgument: it is nothing that front ends ask of Engines.
        """
        self._checked(told.key)
        if told.method not in FORWARDED:
            raise InvalidArgument(f"{told.method!r:.40} is not forwarded to Engines.")
        birth = self._births.get(told.key)
        entry = self._index.get(told.key)
        if entry is None or not entry.unborn:
            return self._forward(told)
        if told.method == "view":
            return queued_view(entry, self._index.request_of(entry))
        if birth is not None:
            return self._forward_after(birth, told)
        raise _unborn(entry)

    def _forward(self, told: Forwarded) -> asyncio.Future[Any]:
        ref = EntityRef(ENGINE_KIND, told.key)
        return self.ctx.call(ref, told.method, *told.args, timeout_ms=max(1, told.timeout_ms))

    async def _forward_after(self, birth: asyncio.Future[Any], told: Forwarded) -> Any:
        await asyncio.wait([birth])
        entry = self._index.get(told.key)
        if entry is not None and entry.unborn:  # the message was lost, as far as is known
            raise _unborn(entry)
        return await self._forward(told)

    @requires("v1")
    async def list_page(self, request: PageRequest) -> list[IndexRow]:
        """A page of a list: committed rows only, by keyset."""
        return await self._page(request, unborn=False)

    @requires("v1")
    async def counts(self, workflow_uuid: str, id_prefix: str) -> dict[str, int]:
        """Instances by status (with such an id: of the first COUNT_ROWS_MAX)."""
        return await self._counts(workflow_uuid, id_prefix, unborn=False)

    # --- the registry -----------------------------------------------------------------------

    @requires("v1")
    def snapshot(self, known_generation: int) -> AccountSnapshot:
        """As `Account.snapshot`."""
        return self._told(self._registry.snapshot(known_generation))

    @requires("v1")
    def put_script(
        self, script: str, code_hash: str, classes: list[tuple[str, str]], take_over: bool
    ) -> Deployed:
        """As `Account.put_script`."""
        return self._registry.put_script(script, code_hash, classes, take_over)

    @requires("v1")
    def register(
        self, name: str, class_name: str, script_name: str, change: LimitsChange
    ) -> DeployedWorkflow:
        """As `Account.register`."""
        return self._registry.register(name, class_name, script_name, change)

    @requires("v1")
    def list_scripts(self) -> list[ScriptRecord]:
        """As `Account.list_scripts`."""
        return self._registry.list_scripts()

    @requires("v1")
    def put_workflow(
        self,
        name: str,
        class_name: str,
        script_name: str,
        code_hash: str,
        take_over: bool = False,
    ) -> WorkflowRecord:
        """As `Account.put_workflow`."""
        return self._registry.put_workflow(name, class_name, script_name, code_hash, take_over)

    @requires("v1")
    def get_workflow(self, name: str) -> WorkflowRecord:
        """As `Account.get_workflow`."""
        return self._registry.get_workflow(name)

    @requires("v1")
    def list_versions(self, name: str) -> list[VersionRecord]:
        """As `Account.list_versions`."""
        return self._registry.list_versions(name)

    @requires("v1")
    async def delete_workflow(self, name: str) -> WorkflowRecord:
        """As `Account.delete_workflow`; who is unborn is gone at once."""
        record = self._registry.delete_workflow(name)
        await self.drop_unborn(record.uuid)
        return record

    @requires("v1")
    def change_limits(self, name: str | None, change: LimitsChange) -> AccountSnapshot:
        """As `Account.change_limits`, for what V1 has.

        Raises:
            PlaneUnsupported: V1 has no such limit.
        """
        snapshot = self._registry.change_limits(name, change)
        self._obey_own_limit()
        return self._told(snapshot)

    @requires("v1")
    def set_limits(self, running_max: int) -> AccountSnapshot:
        """As `Account.set_limits`; V1 never has more than V1_RUNNING_MAX."""
        snapshot = self._registry.set_limits(running_max)
        self._obey_own_limit()
        return self._told(snapshot)

    def _told(self, snapshot: AccountSnapshot) -> AccountSnapshot:
        rate = max(1, self._window.most * 1_000 // limits.V1_CREATES_WINDOW_MS)
        return msgspec.structs.replace(
            snapshot, creates_per_second=(rate, rate), plane=PlaneInfo("v1")
        )


def _unborn(entry: Entry) -> InstanceUnborn:
    return InstanceUnborn(
        f"instance {entry.id!r} is queued and has no Engine yet, so nothing can be done with it; "
        "ask again later."
    )
