"""The control plane's operations, without transport: HTTP and the embedded client call these.

Everything from outside is checked here, before anything is sent: names, ids, payloads, bounds.
The account is part of every key, so no operation reaches another account's data. An operation on
an instance goes to its Engine directly; lists ask the data shards. Of an account on V1 all of it
goes through one entity (`planes`).

A request id makes a change take effect once: the same request sent again (by a client, or in
here after a lost reply) gets the first answer. Where a create names no instance id, the id is
derived from the request id, so that a repeated create finds the instance that it made before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from ..engines.ports import ENGINE_KIND
from ..engines.views import CreateRequest, InstanceView, Parent, Retention, StepOutput
from ..gatekeeper.messages import ACCOUNT_KIND, GATEKEEPER_KIND, WorkflowRecord
from ..gatekeeper.planes import InstanceUnborn
from ..runtime import limits
from ..runtime.clock import Clock
from ..runtime.codec import NULL, check_json
from ..runtime.entropy import Entropy
from ..runtime.errors import (
    InstanceAlreadyExists,
    InvalidArgument,
    StoreFailed,
    ToqueError,
)
from ..runtime.ids import (
    EntityRef,
    Placement,
    check_account_id,
    check_event_type,
    check_instance_id,
    check_workflow_name,
    engine_key,
)
from ..runtime.shard_info import SHARD_INFO_KIND
from .account_limits import LimitsAdmin
from .accounts import Accounts
from .cache import AccountCache
from .calls import Caller, RouterPort
from .changes import InstanceChanges
from .deploys import Deploys
from .identity_cache import IDENTITY_PART, IdentityCache
from .index import Index
from .listing import FINAL_STATUSES, STATUSES, InstancePage, Lister, ListQuery
from .migrations import Migrations
from .planes import Planes
from .rates import CreateRates
from .versions import Versions
from .watching import Watching

_PROBED_ACCOUNT = "default"
"""Whose control entities are asked whether they answer."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]+\Z")


class NewInstance(msgspec.Struct, frozen=True):
    """One create.

    Attributes:
        instance_id: None has one made.
        params: JSON.
        retention: how long it is kept after success, and after another end, in ms; None: as the
            workflow's, the account's or the runtime's settings say.
        parent: the instance that starts it; nobody from outside may say so.
    """

    instance_id: str | None = None
    params: bytes = NULL
    retention: Retention | None = None
    parent: Parent | None = None


class BatchResult(msgspec.Struct, frozen=True):
    """What a batch did: instances made (in the batch's order), ids that were in use before.

    `repeated` are ids that stand in the batch more than once; the first of each counts.
    """

    created: list[InstanceView]
    existing: list[str]
    repeated: list[str]


class WorkflowInfo(msgspec.Struct, frozen=True):
    """A workflow, how many instances it has by status, and when the newest of them was made."""

    record: WorkflowRecord
    counts: dict[str, int]
    triggered_ms: int | None


class InstanceList(msgspec.Struct, frozen=True):
    """A page of a workflow's instances.

    Attributes:
        workflow: whose.
        page: the rows.
        total: how many there are: a lower bound where dates filter or counting stopped at its
            bound; the first page's, where a cursor led here.
        cursor: to the next page; None at the end.
    """

    workflow: WorkflowRecord
    page: InstancePage
    total: int
    cursor: str | None


class ControlPlane(InstanceChanges):
    """The operations of the control plane.

    Args:
        router: reaches all entities.
        placement: which shards there are.
        clock: for the instant of a status change.
        entropy: new ids and jitter.
    """

    def __init__(
        self, router: RouterPort, placement: Placement, clock: Clock, entropy: Entropy
    ) -> None:
        self.placement = placement
        self.clock = clock
        self._entropy = entropy
        self.planes = Planes(router)
        self._caller = Caller(self.planes, entropy, self.planes.refused)
        self._cache = AccountCache(self._caller, self.planes)
        self.accounts = Accounts(self._caller, IdentityCache(self._caller), clock, entropy)
        self.migrations = Migrations(self._caller, self.accounts, entropy)
        self.limits = LimitsAdmin(self._caller, self._cache.forget)
        self._rates = CreateRates(self._caller, entropy)
        self._index = Index(self._caller, self.planes, placement)
        self._lister = Lister(self._caller, self._index)
        self.watching = Watching(self._caller, self._workflow)
        self.versions = Versions(self._caller, self._workflow, self._cache.own_settings)
        self.deploys = Deploys(self._caller, self._cache)

    async def close(self) -> None:
        """End background work."""
        await self._cache.close()
        await self.accounts.cache.close()
        await self._rates.close()

    def refuse(self) -> None:
        """Refuse what is asked from now on (`RuntimeClosed`): there are no shards any more."""
        self._caller.close()

    # --- workflows ---

    async def list_workflows(
        self, account: str, *, search: str = "", page: int = 1, per_page: int = 50
    ) -> tuple[list[WorkflowInfo], int]:
        """A page of workflows by name, and how many there are in all."""
        check_account_id(account)
        ListQuery(page=page, per_page=per_page).check()
        found = [r for r in await self._cache.workflows(account) if search in r.name]
        shown = found[(page - 1) * per_page : page * per_page]
        infos = await asyncio.gather(*(self._workflow_info(account, each) for each in shown))
        return infos, len(found)

    async def get_workflow(self, account: str, workflow: str) -> WorkflowInfo:
        """A workflow, or `WorkflowNotFound`."""
        record = await self._workflow(account, workflow)
        return await self._workflow_info(account, record)

    async def _workflow_info(self, account: str, record: WorkflowRecord) -> WorkflowInfo:
        counts, newest = await asyncio.gather(
            self._counts(account, record.uuid),
            self._lister.page(account, record.uuid, ListQuery(per_page=1)),
        )
        triggered_ms = newest.rows[0].created_ms if newest.rows else None
        return WorkflowInfo(record, counts, triggered_ms)

    async def _counts(self, account: str, uuid: str, *some: str) -> dict[str, int]:
        """Instances by status; `some`: of each part of the index the first ones with an id."""
        totals = dict.fromkeys(STATUSES, 0)
        for part in await self._index.counts(self._caller.deadline(), account, uuid, *some):
            for status, number in part.items():
                totals[status] = totals.get(status, 0) + number
        return totals

    # --- creating ---

    async def create_instance(
        self,
        account: str,
        workflow: str,
        *,
        instance_id: str | None = None,
        params: bytes = NULL,
        wait_ms: int = 0,
        request_id: str | None = None,
        source: str = "api",
        retention: Retention | None = None,
        parent: Parent | None = None,
    ) -> InstanceView:
        """Make an instance; with `wait_ms`, answer when it has ended (or after that time).

        Raises:
            WorkflowNotFound, InstanceAlreadyExists, InvalidId, InvalidPayload, PayloadTooLarge,
            InvalidArgument: nothing was made.
            RateLimited, QueueFull: nothing was made; later it may be.
            OutcomeUnknown: it may have been made; the same request id finds out.
        """
        check_wait(wait_ms)
        new = check_new(NewInstance(instance_id, params, retention, parent))
        record = await self._workflow(account, workflow)
        request_id = self._request_id(request_id)
        await self._admit(account, record, 1)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        view = await self._create(account, record, new, request_id, source, wait_ms)
        if wait_ms and view.status not in FINAL_STATUSES:
            ref = _engine(account, record, view.id)
            return await self._wait(ref, int((until - loop.time()) * 1000), view)
        return view

    async def create_instances(
        self,
        account: str,
        workflow: str,
        instances: Sequence[NewInstance],
        *,
        request_id: str | None = None,
        source: str = "api",
    ) -> BatchResult:
        """Make up to `CREATE_BATCH_MAX` instances.

        Everything is checked before anything is made; rates too, by the number of all. Ids in
        use (also twice in the batch) are left as they are. If a shard does not answer its error is
        raised although others have been made: the same request id makes the rest and gives all.
        """
        if not 1 <= len(instances) <= limits.CREATE_BATCH_MAX:
            raise InvalidArgument(
                f"a batch holds 1 to {limits.CREATE_BATCH_MAX} instances, not {len(instances)}."
            )
        for index, new in enumerate(instances):
            try:
                check_new(new)
            except ToqueError as error:
                told = f"instance {index} of the batch: {error.message}"
                raise type(error)(told, {**error.data, "index": index}) from None
        record = await self._workflow(account, workflow)
        request_id = self._request_id(request_id)
        seen: set[str] = set()
        existing: list[str] = []
        repeated: list[str] = []
        work: list[tuple[NewInstance, str]] = []
        for index, new in enumerate(instances):
            if new.instance_id is not None and new.instance_id in seen:
                repeated.append(new.instance_id)
                continue
            seen.add(new.instance_id or "")
            work.append((new, f"{request_id}#{index}"))
        await self._admit(account, record, len(work))
        results: list[InstanceView | BaseException] = await self._caller.call_each(
            InstanceView,
            self._caller.deadline(),
            "create",
            [self._request(account, record, new, part, source, 0) for new, part in work],
            changes=True,
        )
        created = []
        for (new, _), result in zip(work, results, strict=True):
            if isinstance(result, InstanceView):
                created.append(result)
            elif isinstance(result, InstanceAlreadyExists):
                existing.append(new.instance_id or "")
            else:
                raise result
        return BatchResult(created, existing, repeated)

    async def _create(
        self,
        account: str,
        record: WorkflowRecord,
        new: NewInstance,
        request_id: str,
        source: str,
        wait_ms: int,
    ) -> InstanceView:
        slice_ms = min(wait_ms, limits.WAIT_SLICE_MS)
        ref, request = self._request(account, record, new, request_id, source, slice_ms)
        return await self._caller.call(
            InstanceView,
            self._caller.deadline(slice_ms + limits.REQUEST_DEADLINE_MS),
            ref,
            "create",
            request,
            attempt_ms=slice_ms + limits.REQUEST_ATTEMPT_MS,
            changes=True,
        )

    def _request(
        self,
        account: str,
        record: WorkflowRecord,
        new: NewInstance,
        request_id: str,
        source: str,
        wait_ms: int,
    ) -> tuple[EntityRef, CreateRequest]:
        """Which Engine is asked to create, and what it is asked."""
        instance_id = new.instance_id or made_id(account, record.uuid, request_id)
        settings = self._cache.settings(account, record.uuid)
        request = CreateRequest(
            record.name,
            record.class_name,
            record.version_id,
            record.code_hash,
            new.params,
            request_id,
            record.souschefs,
            source,
            wait_ms,
            new.retention,
            settings.steps or 0,
            default_retention=(settings.success_retention_ms, settings.error_retention_ms),
            parent=new.parent,
        )
        return _engine(account, record, instance_id), request

    # --- reading ---

    async def list_instances(self, account: str, workflow: str, query: ListQuery) -> InstanceList:
        """A page of a workflow's instances (see `listing`)."""
        query.check()
        record = await self._workflow(account, workflow)
        page = await self._lister.page(account, record.uuid, query)
        total = await self._total(account, record.uuid, query, page)
        return InstanceList(record, page, total, page.cursor(total))

    async def _total(self, account: str, uuid: str, query: ListQuery, page: InstancePage) -> int:
        shown = (page.page - 1) * page.per_page + len(page.rows) + page.more if page.rows else 0
        if page.total is not None:
            return max(shown, page.total)
        if query.since_ms is not None or query.until_ms is not None:
            return shown
        counts = await self._counts(account, uuid, query.prefix)
        return max(shown, sum(counts.get(status, 0) for status in set(query.statuses or STATUSES)))

    async def get_instance(
        self,
        account: str,
        workflow: str,
        instance_id: str,
        *,
        with_steps: bool = True,
        newest_first: bool = False,
        steps_max: int = 0,
        wait_ms: int = 0,
    ) -> InstanceView:
        """An instance, or `InstanceNotFound`; with `wait_ms`, when it has ended or time is up.

        `steps_max`: only the first so many steps of that order; 0: all.
        """
        check_wait(wait_ms)
        check_instance_id(instance_id)
        record = await self._workflow(account, workflow)
        ref = _engine(account, record, instance_id)
        if wait_ms:
            view = await self._wait(ref, wait_ms, None)
            if not with_steps:
                return view
        bound = (steps_max,) if steps_max else ()
        deadline = self._caller.deadline()
        return await self._caller.call(
            InstanceView, deadline, ref, "view", with_steps, newest_first, *bound
        )

    async def step_output(
        self,
        account: str,
        workflow: str,
        instance_id: str,
        name: str,
        *,
        kind: str = "step",
        attempt: int = 0,
    ) -> StepOutput:
        """What a step or wait gave, in full, by its public name (`fetch-1`).

        Raises:
            InstanceNotFound, StepNotFound
        """
        check_instance_id(instance_id)
        record = await self._workflow(account, workflow)
        ref = _engine(account, record, instance_id)
        return await self._caller.call(
            StepOutput, self._caller.deadline(), ref, "step_output", name, kind, attempt
        )

    async def stream(
        self, account: str, workflow: str, instance_id: str, name: str, size: int
    ) -> AsyncIterator[bytes]:
        """The content of a step's stream, part by part; `size` is what `step_output` told."""
        check_instance_id(instance_id)
        record = await self._workflow(account, workflow)
        ref = _engine(account, record, instance_id)
        offset = 0
        while offset < size:
            part: bytes = await self._caller.call(
                bytes, self._caller.deadline(), ref, "read_stream", name, offset
            )
            if not part:
                raise StoreFailed(f"the stream of step {name!r} ends before its length.")
            offset += len(part)
            yield part

    async def wait_instance(
        self, account: str, workflow: str, instance_id: str, wait_ms: int
    ) -> InstanceView:
        """The instance when it has ended, or as it is after `wait_ms`. Holds no steps."""
        return await self.get_instance(
            account, workflow, instance_id, with_steps=False, wait_ms=wait_ms
        )

    async def _wait(self, ref: EntityRef, wait_ms: int, last: InstanceView | None) -> InstanceView:
        """Wait in slices, so that a shard that moves is noticed and asked again."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while True:
            left_ms = int((until - loop.time()) * 1000)
            if last is not None and (left_ms <= 0 or last.status in FINAL_STATUSES):
                return last
            slice_ms = max(0, min(left_ms, limits.WAIT_SLICE_MS))
            try:
                last = await self._caller.call(
                    InstanceView,
                    self._caller.deadline(slice_ms + limits.REQUEST_DEADLINE_MS),
                    ref,
                    "wait",
                    slice_ms,
                    attempt_ms=slice_ms + limits.REQUEST_ATTEMPT_MS,
                )
            except InstanceUnborn:  # it was waited for; it is queued
                deadline = self._caller.deadline()
                last = await self._caller.call(InstanceView, deadline, ref, "view", False, False)

    # --- changing ---

    async def send_event(
        self,
        account: str,
        workflow: str,
        instance_id: str,
        event_type: str,
        payload: bytes = NULL,
        *,
        request_id: str | None = None,
    ) -> int:
        """Send an event to an instance; gives its timestamp in milliseconds.

        Raises:
            InstanceNotFound, InstanceFinished
        """
        check_instance_id(instance_id)
        check_event_type(event_type)
        check_json(payload, "event payload")
        record = await self._workflow(account, workflow)
        return await self._caller.call(
            int,
            self._caller.deadline(),
            _engine(account, record, instance_id),
            "send_event",
            event_type,
            payload,
            self._request_id(request_id),
            changes=True,
        )

    # --- health ---

    async def ready(self) -> dict[str, bool]:
        """Whether each part does its work: shards answer and commit, control entities answer.

        Takes READY_TIMEOUT_MS at most.
        """
        deadline = self._caller.deadline(limits.READY_TIMEOUT_MS)
        asked: dict[str, tuple[EntityRef, str, tuple[Any, ...]]] = {
            name: (EntityRef(SHARD_INFO_KIND, name), "probe", ()) for name in self.placement.names()
        }
        asked["account"] = EntityRef(ACCOUNT_KIND, _PROBED_ACCOUNT), "snapshot", (0,)
        asked["gatekeeper"] = EntityRef(GATEKEEPER_KIND, _PROBED_ACCOUNT), "statistics", ()
        calls: list[Any] = [
            self._caller.call(Any, deadline, ref, method, *args)
            for ref, method, args in asked.values()
        ]
        calls.append(self._tokens_readable())
        results = await asyncio.gather(*calls, return_exceptions=True)
        return {
            name: not isinstance(result, BaseException)
            for name, result in zip((*asked, IDENTITY_PART), results, strict=True)
        }

    async def _tokens_readable(self) -> None:
        async with asyncio.timeout(limits.READY_TIMEOUT_MS / 1000):
            await self.accounts.cache.probe()

    async def statistics(self) -> dict[str, dict[str, Any]]:
        """A few counters of each shard, by its name; one that does not answer is left out."""
        return await self._ask_shards("statistics", limits.READY_TIMEOUT_MS)

    async def figures(self) -> dict[str, dict[str, Any]]:
        """All figures of each shard, by its name; one that does not answer is left out."""
        return await self._ask_shards("figures", limits.METRICS_TIMEOUT_MS)

    async def _ask_shards(self, method: str, timeout_ms: int) -> dict[str, dict[str, Any]]:
        deadline = self._caller.deadline(timeout_ms)
        names = self.placement.names()
        calls: list[Any] = [
            self._caller.call(dict[str, Any], deadline, EntityRef(SHARD_INFO_KIND, name), method)
            for name in names
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        return {
            name: result
            for name, result in zip(names, results, strict=True)
            if not isinstance(result, BaseException)
        }

    # --- inner ---

    async def _workflow(self, account: str, workflow: str) -> WorkflowRecord:
        check_account_id(account)
        check_workflow_name(workflow)
        return await self._cache.workflow(account, workflow)

    async def _admit(self, account: str, record: WorkflowRecord, count: int) -> None:
        if self.planes.of(account).plane != "v2":
            return  # AccountOld limits the rate itself
        most = self._cache.create_limits(account, record.uuid)
        await self._rates.admit(account, record.uuid, most, count)

    def _request_id(self, given: str | None) -> str:
        if given is None:
            return self._entropy.new_id()
        return check_request_id(given)


def _engine(account: str, record: WorkflowRecord, instance_id: str) -> EntityRef:
    return EntityRef(ENGINE_KIND, engine_key(account, record.uuid, instance_id))


def check_request_id(value: str) -> str:
    """The request id, or `InvalidArgument`."""
    if len(value) > limits.REQUEST_ID_CHARS_MAX or not _REQUEST_ID.match(value):
        raise InvalidArgument(
            f"request id (Idempotency-Key) must be 1 to {limits.REQUEST_ID_CHARS_MAX} visible "
            "ASCII characters."
        )
    return value


def check_wait(wait_ms: int) -> int:
    """The time to wait, or `InvalidArgument`."""
    if not 0 <= wait_ms <= limits.WAIT_MAX_MS:
        raise InvalidArgument(f"wait must be 0 to {limits.WAIT_MAX_MS // 1000} seconds.")
    return wait_ms


def check_new(new: NewInstance) -> NewInstance:
    """The create, or a `CallerError`."""
    if new.instance_id is not None:
        check_instance_id(new.instance_id)
    check_json(new.params, "params")
    for kept_ms in new.retention or ():
        if kept_ms is not None and not 0 <= kept_ms <= limits.RETENTION_MAX_MS:
            raise InvalidArgument(
                f"retention must be 0 to {limits.RETENTION_MAX_MS // limits.DAY_MS} days."
            )
    return new


def made_id(account: str, workflow_uuid: str, request_id: str) -> str:
    """An instance id in the form of a UUID, the same for the same request."""
    digest = blake2b(f"{account}/{workflow_uuid}/{request_id}".encode(), digest_size=16).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:]}"
