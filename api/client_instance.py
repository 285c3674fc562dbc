"""A handle to one instance, and what its outcome means.

Part of the client; see `client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..engines.durations import Duration
from ..runtime import limits
from ..runtime.codec import NULL, encode_json
from ..runtime.errors import InstanceFailed, InvalidArgument
from ..runtime.ids import check_event_type
from . import client_checks as check
from .changes import Change, FromStep, check_change, step_ref
from .client_values import InstanceError, InstanceStatus, StepOutputStatus
from .watched import InstanceEvent, Waiting

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")


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
        """How it stands now, with its steps.

        Args:
            steps: False leaves them out, which is less to send.
        """
        check.flag(steps, "steps")
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
        check.flag(raise_on_error, "raise_on_error")
        loop = asyncio.get_running_loop()
        seconds = check.seconds(timeout, "timeout")
        until = None if seconds is None else loop.time() + seconds
        while True:
            wait_ms = min(limits.WAIT_DEFAULT_MS, self._client.backend.wait_max_ms)
            if until is not None:
                wait_ms = max(0, min(wait_ms, int((until - loop.time()) * 1000)))
            asked_at = loop.time()
            self.last = await self._client.backend.get(
                self.workflow, self.id, with_steps=False, wait_ms=wait_ms
            )
            if self.last.finished:
                break
            if until is not None and loop.time() >= until - 0.001:
                raise late(self, seconds)
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
        return self._client.backend.stream(self.workflow, self.id, check.step_name(name))

    async def step_output(self, name: str, *, attempt: int = 0) -> StepOutputStatus:
        """What a step gave, in full, and how it stands; for a stream its name and length.

        Args:
            name: the step's public name, for example `fetch-1`.
            attempt: how that attempt ended; 0: the step.

        Raises:
            StepNotFound: there is no such step or attempt.
        """
        check.step_name(name)
        check.whole(attempt, "attempt", 0, limits.RECORDS_PER_INSTANCE_MAX)
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
        await self._change(Change("terminate", check.flag(rollback, "rollback")), request_id)

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
        check.whole(cursor, "cursor", 0, (1 << 63) - 1)
        wanted = check.event_types(types)
        check.flag(follow, "follow")
        backend, loop = self._client.backend, asyncio.get_running_loop()
        wait_ms = min(limits.WAIT_SLICE_MS, backend.wait_max_ms) if follow else 0
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


def late(instance: Instance, seconds: float | None) -> TimeoutError:
    """It has not ended in that time."""
    status = "" if instance.last is None else f"; it is {instance.last.status}"
    return TimeoutError(
        f"instance {instance.id!r} of workflow {instance.workflow!r} had not ended after "
        f"{seconds or 0:g} s{status}, and goes on"
    )


def no_stream(name: str) -> InvalidArgument:
    """What a step gave is no stream."""
    return InvalidArgument(
        f"what step {name!r:.300} gave is no stream. Right: `await instance.step_output(name)`."
    )


def check_success(status: InstanceStatus) -> InstanceStatus:
    """The status, or `InstanceFailed` if the instance ended otherwise than complete."""
    if status.finished and not status.success:
        error = status.error or InstanceError(status.status, "")
        why = f": {error.name}: {error.message}" if status.error else ""
        failed = InstanceFailed(
            f"instance {status.id!r} is {status.status}{why}",
            {"id": status.id, "status": status.status, "name": error.name, "data": error.data},
        )
        for line in error.at:  # Python shows notes below a traceback
            failed.add_note(f"  raised at {line}")
        raise failed
    return status
