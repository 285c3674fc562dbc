"""The SDK: one client over HTTP or over an embedded runtime.

    async with toque.connect("http://127.0.0.1:8787", token) as client:
        instance = await client.create_instance("orders", "order-42", {"order": 42})
        status = await instance.wait(timeout=60)

Errors are the classes of `toque.runtime.errors`, wherever they were raised. Changes carry a
request id, so they may be repeated (the HTTP backend does so by itself) and take effect once.
Ids and payloads are checked here with the server's own validators, before anything is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar, overload

from ..engines.durations import Duration, duration_ms
from ..engines.failures import EventsBufferFull, PayloadMismatch  # noqa: F401 - by import
from ..engines.watch import check_types
from ..runtime import limits
from ..runtime.codec import NULL, encode_json
from ..runtime.entropy import Entropy
from ..runtime.errors import InstanceFailed, InvalidArgument
from ..runtime.ids import check_event_type, check_instance_id, check_workflow_name
from .changes import BatchChanges, Change, FromStep, check_change, check_ids, step_ref
from .client_values import (
    InstanceError as InstanceError,
)
from .client_values import (
    InstanceLine as InstanceLine,
)
from .client_values import (
    InstanceStatus as InstanceStatus,
)
from .client_values import (
    LinePage as LinePage,
)
from .client_values import (
    RollbackStatus as RollbackStatus,
)
from .client_values import (
    StepAttempt as StepAttempt,
)
from .client_values import (
    StepOutputStatus as StepOutputStatus,
)
from .client_values import (
    StepStatus as StepStatus,
)
from .client_values import (
    WorkflowSummary as WorkflowSummary,
)
from .client_watching import InstanceEvent, InstanceEvents, Waiting
from .listing import STATUSES
from .service import NewInstance, check_request_id

T = TypeVar("T")


class Backend(Protocol):
    """How a client reaches a control plane. Answers are final: repeats happen inside."""

    async def create(
        self, workflow: str, new: NewInstance, wait_ms: int, request_id: str
    ) -> InstanceStatus: ...

    async def create_batch(
        self, workflow: str, news: list[NewInstance], request_id: str
    ) -> list[str]: ...

    async def get(
        self, workflow: str, instance_id: str, *, with_steps: bool, wait_ms: int
    ) -> InstanceStatus: ...

    async def change_status(
        self, workflow: str, instance_id: str, change: Change, request_id: str
    ) -> str: ...

    async def change_many(
        self, workflow: str, ids: list[str], change: Change, request_id: str
    ) -> BatchChanges: ...

    async def delete(self, workflow: str, instance_id: str, request_id: str) -> None: ...

    async def delete_many(self, workflow: str, ids: list[str], request_id: str) -> BatchChanges: ...

    async def terminate_all(self, workflow: str, statuses: list[str]) -> bool: ...

    async def send_event(
        self, workflow: str, instance_id: str, event_type: str, payload: bytes, request_id: str
    ) -> str: ...

    async def events(
        self, workflow: str, instance_id: str, cursor: int, types: Sequence[str], wait_ms: int
    ) -> InstanceEvents: ...

    async def waiting(self, workflow: str, instance_id: str) -> Waiting: ...

    def stream(self, workflow: str, instance_id: str, name: str) -> AsyncIterator[bytes]: ...

    async def step_output(
        self, workflow: str, instance_id: str, name: str, attempt: int
    ) -> StepOutputStatus: ...

    async def list_page(
        self, workflow: str, filters: Mapping[str, str], cursor: str | None
    ) -> LinePage: ...

    async def list_workflows(self, page: int) -> list[WorkflowSummary]: ...

    async def get_workflow(self, workflow: str) -> WorkflowSummary: ...

    async def statistics(self) -> dict[str, dict[str, Any]]: ...

    async def close(self) -> None: ...


class Instance:
    """A handle to one instance. Making one does not ask the server.

    Attributes:
        id, workflow: which instance.
        last: the last status that this handle saw; None if none.
    """

    __slots__ = ("_client", "id", "last", "workflow")

    def __init__(
        self, client: Client, workflow: str, instance_id: str, last: InstanceStatus | None = None
    ) -> None:
        self._client = client
        self.workflow = workflow
        self.id = instance_id
        self.last = last

    def __repr__(self) -> str:
        return f"Instance({self.workflow!r}, {self.id!r})"

    async def status(self, *, steps: bool = True) -> InstanceStatus:
        """How it stands now, with its steps."""
        backend = self._client.backend
        self.last = await backend.get(self.workflow, self.id, with_steps=steps, wait_ms=0)
        return self.last

    async def wait(
        self, timeout: Duration | None = None, *, raise_on_error: bool = False
    ) -> InstanceStatus:
        """The status when it has ended (without steps).

        Args:
            timeout: seconds, or `"5 minutes"`; None: however long it takes.
            raise_on_error: raise `InstanceFailed` if it ended errored or terminated.

        Raises:
            TimeoutError: it had not ended in time.
        """
        loop = asyncio.get_running_loop()
        seconds = _seconds(timeout)
        until = None if seconds is None else loop.time() + seconds
        while True:
            wait_ms = limits.WAIT_DEFAULT_MS
            if until is not None:
                wait_ms = max(0, min(wait_ms, int((until - loop.time()) * 1000)))
            asked_at = loop.time()
            self.last = await self._client.backend.get(
                self.workflow, self.id, with_steps=False, wait_ms=wait_ms
            )
            if self.last.finished:
                break
            if until is not None and loop.time() >= until - 0.001:
                raise TimeoutError(f"{self!r} is {self.last.status} after {seconds} s")
            if (loop.time() - asked_at) * 1000 < wait_ms / 2:
                await asyncio.sleep(
                    limits.RETRY_AFTER_MS / 1000
                )  # answered early: a draining server
        if raise_on_error:
            check_success(self.last)
        return self.last

    @overload
    async def output(self, *, timeout: Duration | None = None) -> Any: ...

    @overload
    async def output(self, expected: type[T], *, timeout: Duration | None = None) -> T: ...

    async def output(self, expected: Any = Any, *, timeout: Duration | None = None) -> Any:
        """What `run` returned, when it has; as a type, if one is given.

        Raises:
            InstanceFailed: it ended errored or terminated.
            TimeoutError: it had not ended in time.
            PayloadMismatch: its output does not fit the type.
        """
        status = await self.wait(timeout, raise_on_error=True)
        return status.output if expected is Any else status.output_as(expected)

    def stream(self, name: str) -> AsyncIterator[bytes]:
        """The content of a step's result that is a stream, part by part.

        Args:
            name: the step's public name, for example `fetch-1`.

        Raises:
            StepNotFound: there is no such step.
            InvalidArgument: what it gave is no stream.
        """
        return self._client.backend.stream(self.workflow, self.id, name)

    async def step_output(self, name: str, *, attempt: int = 0) -> StepOutputStatus:
        """What a step gave, in full, and how it stands; for a stream its name and length.

        Args:
            name: the step's public name, for example `fetch-1`.
            attempt: how that attempt ended; 0: the step.

        Raises:
            StepNotFound: there is no such step or attempt.
        """
        return await self._client.backend.step_output(self.workflow, self.id, name, attempt)

    async def send_event(
        self, event_type: str, payload: Any = None, *, request_id: str | None = None
    ) -> None:
        """Send it an event; it may come before the instance waits for it.

        Args:
            event_type, payload: what `step.wait_for_event` waits for, and gets.
            request_id: the same one again is the same event, and sends no other.
        """
        check_event_type(event_type)
        raw = NULL if payload is None else encode_json(payload, "event payload")
        client = self._client
        await client.backend.send_event(
            self.workflow, self.id, event_type, raw, client.new_request_id(request_id)
        )

    async def terminate(self, *, rollback: bool = False, request_id: str | None = None) -> None:
        """End it at once; with `rollback`, undo first what its steps did, as far as they say how.

        `InvalidTransition` if it has ended.
        """
        await self._change(Change("terminate", rollback), request_id)

    async def pause(self, *, request_id: str | None = None) -> None:
        """Have it do nothing more until it is resumed; steps in flight end first."""
        await self._change(Change("pause"), request_id)

    async def resume(self, *, request_id: str | None = None) -> None:
        """Have it go on after a pause; its timers move by the pause's length."""
        await self._change(Change("resume"), request_id)

    async def restart(
        self, *, from_step: FromStep | None = None, request_id: str | None = None
    ) -> None:
        """Have it begin again: the same id and params, a new run.

        Args:
            from_step: results of steps that began before that one are kept: its name, or
                `("name", 2)`, or `{"name": ..., "count": 2, "type": "waitForEvent"}`.
        """
        await self._change(Change("restart", from_step=step_ref(from_step)), request_id)

    async def cancel(self, *, request_id: str | None = None) -> None:
        """Raise `asyncio.CancelledError` in it, so that it can clean up; see `step.shield`."""
        await self._change(Change("cancel"), request_id)

    async def delete(self, *, request_id: str | None = None) -> None:
        """Remove it, whatever its status; its id is free at once."""
        client = self._client
        await client.backend.delete(self.workflow, self.id, client.new_request_id(request_id))

    async def _change(self, change: Change, request_id: str | None) -> None:
        client = self._client
        key = client.new_request_id(request_id)
        await client.backend.change_status(self.workflow, self.id, check_change(change), key)

    async def events(
        self, *, cursor: int = 0, types: Iterable[str] = (), follow: bool = True
    ) -> AsyncIterator[InstanceEvent]:
        """What has happened to it, then what happens, until it has ended.

        Args:
            cursor: `event_id` of the last event seen; 0: from the start.
            types: only these, for example `("step_completed", "workflow_completed")`.
            follow: False: stop where history ends now.
        """
        wanted = sorted(check_types(types))
        backend, loop = self._client.backend, asyncio.get_running_loop()
        wait_ms = limits.WAIT_SLICE_MS if follow else 0
        while True:
            asked_at = loop.time()
            page = await backend.events(self.workflow, self.id, cursor, wanted, wait_ms)
            for event in page.events:
                yield event
            if page.ended or (not follow and page.cursor == cursor):
                return
            cursor = page.cursor
            if not page.events and follow and (loop.time() - asked_at) * 1000 < wait_ms / 2:
                await asyncio.sleep(limits.RETRY_AFTER_MS / 1000)  # a draining server

    async def why(self) -> Waiting:
        """Why it does not go on: a slot, a timer, an event, a step that runs, its code."""
        return await self._client.backend.waiting(self.workflow, self.id)


def no_stream(name: str) -> InvalidArgument:
    """What a step gave is no stream."""
    return InvalidArgument(
        f"what step {name!r:.300} gave is no stream. Right: `await instance.step_output(name)`."
    )


def check_success(status: InstanceStatus) -> InstanceStatus:
    """The status, or `InstanceFailed` if the instance ended otherwise than complete."""
    if status.finished and not status.success:
        error = status.error or InstanceError(status.status, "")
        raise InstanceFailed(
            f"instance {status.id!r} is {status.status}: {error.name}: {error.message}",
            {"id": status.id, "status": status.status, "name": error.name, "data": error.data},
        )
    return status


class Client:
    """A client of one account.

    Args:
        backend: how the control plane is reached.
        entropy: request ids.
    """

    def __init__(self, backend: Backend, entropy: Entropy) -> None:
        self.backend = backend
        self._entropy = entropy

    def new_request_id(self, given: str | None = None) -> str:
        """An id for one change: the one that is given, or a new one."""
        return self._entropy.new_id() if given is None else check_request_id(given)

    async def create_instance(
        self,
        workflow: str,
        id: str | None = None,
        params: Any = None,
        wait: Duration | None = None,
        *,
        request_id: str | None = None,
        retention: tuple[Duration, Duration] | None = None,
    ) -> Instance:
        """Make an instance.

        Args:
            workflow: the workflow's name.
            id: the instance's id; None: one is made.
            params: JSON-like data, dataclass, model, ...; the workflow's `event.payload`.
            wait: how long to wait for its end, in the same request (seconds, or `"5 s"`);
                `instance.last` then holds the outcome (or the status so far).
            request_id: the same one again gives the same instance.
            retention: how long it is kept after success, and after another end: seconds, or
                `"3 days"`; not given: as the server is set.

        Raises:
            WorkflowNotFound, InstanceAlreadyExists
        """
        check_workflow_name(workflow)
        new = _new(id, params, retention)
        wait_ms = 0 if wait is None else duration_ms(wait, "wait", max_ms=limits.WAIT_MAX_MS)
        last = await self.backend.create(workflow, new, wait_ms, self.new_request_id(request_id))
        return Instance(self, workflow, last.id, last)

    async def run_instance(
        self,
        workflow: str,
        id: str | None = None,
        params: Any = None,
        timeout: Duration | None = None,
    ) -> InstanceStatus:
        """Make an instance and give its outcome; `InstanceFailed` if it is not complete."""
        most = limits.WAIT_DEFAULT_MS / 1000
        loop = asyncio.get_running_loop()
        began = loop.time()
        seconds = _seconds(timeout)
        first = most if seconds is None else min(seconds, most)
        instance = await self.create_instance(workflow, id, params, wait=first)
        if instance.last is not None and instance.last.finished:
            return check_success(instance.last)
        left = None if seconds is None else max(0.0, seconds - (loop.time() - began))
        return await instance.wait(left, raise_on_error=True)

    async def create_instances(
        self, workflow: str, instances: Iterable[Mapping[str, Any]]
    ) -> list[Instance]:
        """Make many: each a mapping with `id` and `params`, both optional.

        Sent in batches, a few at a time. Gives those that were made; ids in use are left out.
        """
        check_workflow_name(workflow)
        gate = asyncio.Semaphore(limits.CLIENT_PARALLEL_CREATES_MAX)

        async def send(batch: list[NewInstance]) -> list[str]:
            async with gate:
                return await self.backend.create_batch(workflow, batch, self._entropy.new_id())

        tasks = [asyncio.ensure_future(send(batch)) for batch in _batches(instances)]
        try:
            made = await asyncio.gather(*tasks)
        finally:  # one failed, or the caller was cancelled: the rest is not sent
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [Instance(self, workflow, one) for batch in made for one in batch]

    async def change_instances(
        self, workflow: str, ids: Iterable[str], change: str | Change
    ) -> BatchChanges:
        """Change the status of up to 100 instances, each by itself; see `api.changes`."""
        check_workflow_name(workflow)
        wanted = check_change(Change(change) if isinstance(change, str) else change)
        found = _several(ids)
        check_ids(found)
        return await self.backend.change_many(workflow, found, wanted, self._entropy.new_id())

    async def delete_instances(self, workflow: str, ids: Iterable[str]) -> BatchChanges:
        """Remove up to 100 instances, each by itself; tells which were not there."""
        check_workflow_name(workflow)
        found = _several(ids)
        check_ids(found)
        return await self.backend.delete_many(workflow, found, self._entropy.new_id())

    async def terminate_instances(self, workflow: str, statuses: Iterable[str] = ()) -> bool:
        """Terminate all that have not ended, or those of some statuses, in the background.

        False: that is under way already.
        """
        return await self.backend.terminate_all(check_workflow_name(workflow), list(statuses))

    async def get_instance(self, workflow: str, id: str) -> Instance:
        """A handle to an instance that exists; `InstanceNotFound` otherwise."""
        instance = self.instance(workflow, id)
        await instance.status(steps=False)
        return instance

    def instance(self, workflow: str, id: str) -> Instance:
        """A handle, without asking whether the instance exists."""
        return Instance(self, check_workflow_name(workflow), check_instance_id(id))

    async def list_instances(
        self,
        workflow: str,
        *,
        status: str | Iterable[str] = (),
        date_start: str | None = None,
        date_end: str | None = None,
        direction: str = "desc",
        per_page: int = limits.PER_PAGE_MAX,
    ) -> AsyncIterator[InstanceLine]:
        """All instances, by creation; each exactly once."""
        check_workflow_name(workflow)
        statuses = [status] if isinstance(status, str) else list(status)
        for one in statuses:
            if one not in STATUSES:
                raise InvalidArgument(f"status {one!r:.80} is not one of {', '.join(STATUSES)}.")
        filters = {"direction": direction, "per_page": str(per_page)}
        if statuses:
            filters["status"] = ",".join(statuses)
        if date_start is not None:
            filters["date_start"] = date_start
        if date_end is not None:
            filters["date_end"] = date_end
        cursor: str | None = None
        while True:
            page = await self.backend.list_page(workflow, filters, cursor)
            for line in page.lines:
                yield line
            cursor = page.cursor
            if cursor is None:
                return

    async def list_workflows(self) -> list[WorkflowSummary]:
        """All workflows of the account, by name."""
        found: list[WorkflowSummary] = []
        page = 1
        while True:
            part = await self.backend.list_workflows(page)
            found += part
            if len(part) < limits.PER_PAGE_MAX:
                return found
            page += 1

    async def get_workflow(self, workflow: str) -> WorkflowSummary:
        """A workflow, or `WorkflowNotFound`."""
        return await self.backend.get_workflow(check_workflow_name(workflow))

    async def statistics(self) -> dict[str, dict[str, Any]]:
        """Counters of each shard of the server, by its name."""
        return await self.backend.statistics()

    async def close(self) -> None:
        """Close connections."""
        await self.backend.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _several(ids: Iterable[str]) -> list[str]:
    """The ids. One string is none of them: its letters would be taken for ids."""
    if isinstance(ids, str | bytes):
        raise InvalidArgument(
            f"ids must be a list of ids, not the text {ids!r:.80}. Right: [{ids!r:.80}]."
        )
    return list(ids)


def _new(
    id: str | None, params: Any, retention: tuple[Duration, Duration] | None = None
) -> NewInstance:
    if id is not None:
        check_instance_id(id)
    kept = None
    if retention is not None:
        if not isinstance(retention, tuple | list) or len(retention) != 2:
            raise InvalidArgument(
                f"retention {retention!r:.80} is not a pair of durations: of success, and of any "
                "other end. Right: ('7 days', '30 days')."
            )
        success, other = (
            duration_ms(one, "retention", max_ms=limits.RETENTION_MAX_MS) for one in retention
        )
        kept = success, other
    return NewInstance(id, NULL if params is None else encode_json(params, "params"), kept)


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else duration_ms(timeout, "timeout") / 1_000


def _batches(instances: Iterable[Mapping[str, Any]]) -> list[list[NewInstance]]:
    """Batches within the bounds of one request, in count and bytes."""
    batches: list[list[NewInstance]] = []
    batch: list[NewInstance] = []
    size = 0
    for item in instances:
        unknown = sorted(set(item) - {"id", "params"})
        if unknown:
            raise InvalidArgument(f"{unknown[0]!r:.80} is not known; give 'id' and 'params'.")
        new = _new(item.get("id"), item.get("params"))
        length = len(new.params) + limits.INSTANCE_ID_CHARS_MAX + limits.KIB
        full = len(batch) >= limits.CREATE_BATCH_MAX
        if batch and (full or size + length > limits.BATCH_BODY_BYTES_MAX):
            batches.append(batch)
            batch, size = [], 0
        batch.append(new)
        size += length
    return [*batches, batch] if batch else batches
