"""Operations on instances that exist: changes of status, deletion, and both for many at a time.

The part of `service.ControlPlane` that changes instances. One operation on one instance is one
call to its Engine, which takes each request id once; of a batch each item is an operation of its
own, with an answer of its own, so that one that is refused holds up none.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from ..engines.ports import ENGINE_KIND
from ..engines.views import InstanceView
from ..gatekeeper.messages import CLEARING_KIND, WorkflowRecord
from ..runtime import limits
from ..runtime.codec import Whole
from ..runtime.errors import InvalidArgument, ToqueError
from ..runtime.guarded import shown
from ..runtime.ids import EntityRef, check_instance_id, check_step_name, engine_key
from .calls import Caller
from .listing import FINAL_STATUSES, STATUSES, Lister, ListQuery

_log = logging.getLogger("toque.api")
STATUS_CHANGES = ("pause", "resume", "terminate", "restart", "cancel")
STEP_TYPES = ("do", "sleep", "waitForEvent", "startChild", "child")


class StepRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of an instance: its name as in the code, and which use of it."""

    name: str
    count: Whole = 1
    type: str = "do"


FromStep = str | StepRef | tuple[str, int] | Mapping[str, Any]
"""A step to restart from."""


class Change(msgspec.Struct, frozen=True):
    """A change of status.

    Attributes:
        change: one of `STATUS_CHANGES`.
        rollback: with `terminate`: undo first what the instance's steps did.
        from_step: with `restart`: keep what began before that step.
        source: what asks for it, as of a create.
    """

    change: str
    rollback: bool = False
    from_step: StepRef | None = None
    source: str = "api"


class ItemError(msgspec.Struct, frozen=True):
    """Why an item of a batch was refused."""

    id: str
    code: int
    message: str


class BatchChanges(msgspec.Struct, frozen=True):
    """What a batch did, in its order: `(id, status)` of what was changed, and what was refused."""

    changed: list[tuple[str, str]]
    errors: list[ItemError]


class InstanceChanges(ABC):
    """See the module's description. `ControlPlane` fills in what it needs."""

    _caller: Caller
    _lister: Lister

    @abstractmethod
    async def _workflow(self, account: str, workflow: str) -> WorkflowRecord:
        """The workflow's record, or `WorkflowNotFound`."""

    @abstractmethod
    async def _admit(self, account: str, record: WorkflowRecord, count: int) -> None:
        """Let creates pass, or `RateLimited`; a restart counts as one."""

    @abstractmethod
    def _request_id(self, given: str | None) -> str:
        """The request id; None: a new one."""

    async def change_status(
        self,
        account: str,
        workflow: str,
        instance_id: str,
        change: str | Change,
        *,
        request_id: str | None = None,
    ) -> InstanceView:
        """Change an instance's status.

        Raises:
            InvalidArgument: another change; `data["supported"]` says which there are.
            InvalidTransition: the instance's status does not allow it.
            StepNotFound: it has no such step to restart from.
        """
        wanted = check_change(Change(change) if isinstance(change, str) else change)
        check_instance_id(instance_id)
        record = await self._workflow(account, workflow)
        return await self._change(
            account, record, instance_id, wanted, self._request_id(request_id)
        )

    async def _change(
        self,
        account: str,
        record: WorkflowRecord,
        instance_id: str,
        change: Change,
        request_id: str,
    ) -> InstanceView:
        args: tuple[Any, ...] = ()
        if change.change == "terminate":
            args = (change.rollback, change.source)
        elif change.change == "cancel":
            args = (change.source,)
        elif change.change == "restart":
            step = change.from_step
            args = ("", 1, "do") if step is None else (step.name, step.count, step.type)
            await self._admit(account, record, 1)
        return await self._caller.call(
            InstanceView,
            self._caller.deadline(),
            EntityRef(ENGINE_KIND, engine_key(account, record.uuid, instance_id)),
            change.change,
            request_id,
            *args,
            changes=True,
        )

    async def delete_instance(
        self, account: str, workflow: str, instance_id: str, *, request_id: str | None = None
    ) -> None:
        """Remove an instance, whatever its status; its id is free at once."""
        check_instance_id(instance_id)
        record = await self._workflow(account, workflow)
        await self._delete(account, record, instance_id, self._request_id(request_id))

    async def _delete(
        self, account: str, record: WorkflowRecord, instance_id: str, request_id: str
    ) -> str:
        await self._caller.call(
            bool,
            self._caller.deadline(),
            EntityRef(ENGINE_KIND, engine_key(account, record.uuid, instance_id)),
            "delete",
            request_id,
            changes=True,
        )
        return "deleted"

    async def change_many(
        self,
        account: str,
        workflow: str,
        ids: Sequence[str],
        change: Change,
        *,
        request_id: str | None = None,
    ) -> BatchChanges:
        """Change the status of up to `CHANGE_BATCH_MAX` instances, each by itself."""
        check_change(change)
        check_ids(ids)
        record = await self._workflow(account, workflow)
        request_id = self._request_id(request_id)

        async def one(instance_id: str, part: str) -> str:
            return (await self._change(account, record, instance_id, change, part)).status

        works = [one(each, f"{request_id}#{n}") for n, each in enumerate(ids)]
        return await _results_of(ids, works)

    async def change_matching(
        self,
        account: str,
        workflow: str,
        query: ListQuery,
        change: Change,
        *,
        request_id: str | None = None,
    ) -> tuple[BatchChanges, str | None]:
        """Change the next instances that a query finds, each by itself.

        Gives what became of each, and the cursor to what comes after them; None: that was all.
        Whoever repeats it with the same request id changes none twice.
        """
        check_change(change)
        record = await self._workflow(account, workflow)

        async def one(instance_id: str, part: str) -> str:
            return (await self._change(account, record, instance_id, change, part)).status

        return await self._matching(account, record, query, one, request_id)

    async def delete_matching(
        self, account: str, workflow: str, query: ListQuery, *, request_id: str | None = None
    ) -> tuple[BatchChanges, str | None]:
        """Remove the next instances that a query finds; like `change_matching`.

        Whoever repeats it is told of those that it finds then, and they are removed too.
        """
        record = await self._workflow(account, workflow)

        async def one(instance_id: str, part: str) -> str:
            return await self._delete(account, record, instance_id, part)

        return await self._matching(account, record, query, one, request_id)

    async def _matching(
        self,
        account: str,
        record: WorkflowRecord,
        query: ListQuery,
        one: Callable[[str, str], Coroutine[Any, Any, str]],
        request_id: str | None,
    ) -> tuple[BatchChanges, str | None]:
        if query.per_page > limits.CHANGE_BATCH_MAX:
            raise InvalidArgument(f"at most {limits.CHANGE_BATCH_MAX} are changed at a time.")
        request_id = self._request_id(request_id)
        page = await self._lister.page(account, record.uuid, query)
        ids = [row.id for row in page.rows]
        works = [one(each, _part_id(request_id, each)) for each in ids]
        return await _results_of(ids, works), page.cursor(0)

    async def delete_many(
        self, account: str, workflow: str, ids: Sequence[str], *, request_id: str | None = None
    ) -> BatchChanges:
        """Remove up to `CHANGE_BATCH_MAX` instances, each by itself."""
        check_ids(ids)
        record = await self._workflow(account, workflow)
        request_id = self._request_id(request_id)
        works = [
            self._delete(account, record, each, f"{request_id}#{n}") for n, each in enumerate(ids)
        ]
        return await _results_of(ids, works)

    async def terminate_all(
        self, account: str, workflow: str, statuses: Sequence[str], *, source: str = "api"
    ) -> bool:
        """Terminate all instances of some statuses, in the background and over crashes.

        Those that are created meanwhile may be left. False: it is under way already.

        Args:
            account, workflow: whose.
            statuses: none: all that have not ended.
            source: what asks for it, as of a create.
        """
        for status in statuses:
            if status not in STATUSES or status in FINAL_STATUSES:
                raise InvalidArgument(
                    f"status {shown(status)} can't be terminated; give one of "
                    f"{', '.join(s for s in STATUSES if s not in FINAL_STATUSES)}."
                )
        record = await self._workflow(account, workflow)
        wanted = list(statuses) or [s for s in STATUSES if s not in FINAL_STATUSES]
        return await self._caller.call(
            bool,
            self._caller.deadline(),
            clearing_of(account, record.uuid),
            "begin",
            "terminate",
            wanted,
            self._request_id(None),
            source,
            changes=True,
        )

    async def is_clearing(self, account: str, workflow_uuid: str) -> bool:
        """Whether instances of a workflow are being terminated or deleted in the background."""
        return await self._caller.call(
            bool, self._caller.deadline(), clearing_of(account, workflow_uuid), "is_running"
        )


def clearing_of(account: str, workflow_uuid: str) -> EntityRef:
    """The entity that ends all instances of a workflow."""
    return EntityRef(CLEARING_KIND, f"{account}/{workflow_uuid}")


def _part_id(request_id: str, instance_id: str) -> str:
    """The request id of one instance's part; ids are longer than a request id may be."""
    return blake2b(f"{request_id}/{instance_id}".encode(), digest_size=16).hexdigest()


async def _results_of(
    ids: Sequence[str], works: Iterable[Coroutine[Any, Any, str]]
) -> BatchChanges:
    changed: list[tuple[str, str]] = []
    errors: list[ItemError] = []
    results = await asyncio.gather(*works, return_exceptions=True)
    for instance_id, result in zip(ids, results, strict=True):
        if isinstance(result, str):
            changed.append((instance_id, result))
        elif isinstance(result, ToqueError):
            errors.append(ItemError(instance_id, result.number, result.message or result.code))
        elif isinstance(result, Exception):  # a bug: its text stays in here
            _log.error("an item of a batch failed inside", exc_info=result)
            errors.append(ItemError(instance_id, ToqueError.number, "an internal error"))
        else:
            raise result
    return BatchChanges(changed, errors)


def check_change(change: Change) -> Change:
    """The change, or `InvalidArgument`."""
    if change.change not in STATUS_CHANGES:
        raise InvalidArgument(
            f"status change {shown(change.change)} is not supported; use one of: "
            f"{', '.join(STATUS_CHANGES)}.",
            {"supported": list(STATUS_CHANGES)},
        )
    if change.rollback and change.change != "terminate":
        raise InvalidArgument("'rollback' goes with 'terminate' only.")
    step = change.from_step
    if step is not None:
        if change.change != "restart":
            raise InvalidArgument("'from' goes with 'restart' only.")
        check_step_name(step.name)
        if step.type not in STEP_TYPES or not 1 <= step.count <= limits.RECORDS_PER_INSTANCE_MAX:
            raise InvalidArgument(
                f"'from' has the type {shown(step.type)} and the count {step.count}; the type is "
                f"one of {', '.join(STEP_TYPES)}, the count 1 or more, for example "
                '{"name": "charge", "count": 1, "type": "do"}.'
            )
    return change


def check_ids(ids: Sequence[str]) -> None:
    """Refuse a batch whose size or ids are not as they must be; nothing of it is done then."""
    if not 1 <= len(ids) <= limits.CHANGE_BATCH_MAX:
        raise InvalidArgument(
            f"a batch holds 1 to {limits.CHANGE_BATCH_MAX} instances, not {len(ids)}."
        )
    for instance_id in ids:
        check_instance_id(instance_id)


def step_ref(given: FromStep | None) -> StepRef | None:
    """A step to restart from, as the server takes it; `InvalidArgument` if it is none."""
    if given is None or isinstance(given, StepRef):
        return given
    if isinstance(given, str):
        return StepRef(given)
    try:
        named = given if isinstance(given, Mapping) else StepRef(*given)
        # converted in both cases, so that ("charge", "2") is refused as its mapping would be
        return msgspec.convert(msgspec.to_builtins(named), StepRef)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(
            f"from_step {shown(given)} is not as expected: {error}. Right: 'charge', "
            "('charge', 2) or {'name': 'charge', 'count': 2, 'type': 'do'}."
        ) from None
