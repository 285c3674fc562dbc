"""The client's backend over a control plane in the same process.

Answers pass through the same JSON shapes as over HTTP, so code that runs embedded runs the same
against a server.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlencode

import msgspec

from ..gatekeeper.refusals import RateLimited
from ..runtime import limits
from ..runtime.errors import InvalidArgument, OutcomeUnknown
from . import shapes, watching_shapes
from .changes import BatchChanges, Change
from .client_instance import no_stream
from .client_port import wait_max_ms
from .client_values import (
    CallOptions,
    CreatedStatus,
    InstanceLine,
    InstanceStatus,
    LinePage,
    StepOutputStatus,
    WorkflowSummary,
)
from .listing import ListQuery
from .requests import parse_list, parse_selection, parse_statuses
from .service import ControlPlane, NewInstance
from .watched import InstanceEvents, Waiting
from .workflow_shapes import workflow_shape

T = TypeVar("T")
P = ParamSpec("P")
_encode = msgspec.json.Encoder().encode
_status = msgspec.json.Decoder(InstanceStatus)
_created = msgspec.json.Decoder(CreatedStatus)
_events = msgspec.json.Decoder(InstanceEvents)
_waiting = msgspec.json.Decoder(Waiting)
_lines = msgspec.json.Decoder(list[InstanceLine])
_step_output = msgspec.json.Decoder(StepOutputStatus)
_workflow = msgspec.json.Decoder(WorkflowSummary)


_SOURCE = "binding"
"""What asks, as instances tell it."""


def _ours(change: Change) -> Change:
    return msgspec.structs.replace(change, source=_SOURCE)


def _seen(decoder: msgspec.json.Decoder[T], shape: Any) -> T:
    return decoder.decode(_encode(shape))


def _in_time(
    call: Callable[Concatenate[EmbeddedBackend, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[EmbeddedBackend, P], Coroutine[Any, Any, T]]:
    """A call that ends within the backend's time-out, as one over HTTP does."""

    @functools.wraps(call)
    async def bounded(self: EmbeddedBackend, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.timeout_s is None:
            return await call(self, *args, **kwargs)
        try:
            async with asyncio.timeout(self.timeout_s):
                return await call(self, *args, **kwargs)
        except TimeoutError:
            raise OutcomeUnknown(
                f"no answer to {call.__name__} came within {self.timeout_s:g} s; a change may or "
                "may not have taken effect."
            ) from None

    return bounded  # type: ignore[return-value]  # the name of its `self` does not matter


class EmbeddedBackend:
    """Calls the control plane directly. Accounts, tokens, limits and deploys need a server.

    Args:
        plane: the operations.
        account: whose.

    Attributes:
        timeout_s: of a call; None: as long as the control plane may take.
    """

    def __init__(self, plane: ControlPlane, account: str) -> None:
        self._plane = plane
        self._account = self.account = account
        self._retry_for_s = limits.CLIENT_RETRY_FOR_MS / 1000
        self._retried = Counter[str]()  # one for all that `with_options` gives
        self.timeout_s: float | None = None

    @property
    def retries(self) -> int:
        """How often creates were made again, when the rate allowed them."""
        return self._retried.total()

    @property
    def wait_max_ms(self) -> int:
        """The longest wait that one call may ask for: its answer has to come in time."""
        return wait_max_ms(self.timeout_s)

    def with_options(self, options: CallOptions) -> EmbeddedBackend:
        """The same with other times."""
        other = EmbeddedBackend(self._plane, self._account)
        other._retried = self._retried
        other.timeout_s = self.timeout_s if options.timeout_s is None else options.timeout_s
        other._retry_for_s = self._retry_for_s
        if options.retry_for_s is not None:
            other._retry_for_s = options.retry_for_s
        return other

    async def _in_turn(self, create: Callable[[], Awaitable[T]]) -> T:
        """Create, again when the rate allows it: as clients over HTTP obey `Retry-After`."""
        loop = asyncio.get_running_loop()
        most_s = self._retry_for_s if self.timeout_s is None else self.timeout_s
        until = loop.time() + min(self._retry_for_s, most_s)
        while True:
            try:
                return await create()
            except RateLimited as error:
                pause_s = error.data["retry_after_ms"] / 1000
                if loop.time() + pause_s >= until:
                    raise
            self._retried["create"] += 1
            await asyncio.sleep(pause_s)

    @_in_time
    async def create(
        self, workflow: str, new: NewInstance, wait_ms: int, request_id: str
    ) -> InstanceStatus:
        view = await self._in_turn(
            lambda: self._plane.create_instance(
                self._account,
                workflow,
                instance_id=new.instance_id,
                params=new.params,
                wait_ms=wait_ms,
                request_id=request_id,
                source=_SOURCE,
                retention=new.retention,
            )
        )
        return _seen(_created, shapes.created_and_waited(view))

    @_in_time
    async def create_batch(
        self, workflow: str, news: list[NewInstance], request_id: str
    ) -> list[str]:
        result = await self._in_turn(
            lambda: self._plane.create_instances(
                self._account, workflow, news, request_id=request_id, source=_SOURCE
            )
        )
        return [view.id for view in result.created]

    @_in_time
    async def get(
        self, workflow: str, instance_id: str, *, with_steps: bool, wait_ms: int
    ) -> InstanceStatus:
        view = await self._plane.get_instance(
            self._account, workflow, instance_id, with_steps=with_steps, wait_ms=wait_ms
        )
        return _seen(_status, shapes.detail(view))

    @_in_time
    async def change_status(
        self, workflow: str, instance_id: str, change: Change, request_id: str
    ) -> str:
        view = await self._plane.change_status(
            self._account, workflow, instance_id, _ours(change), request_id=request_id
        )
        return view.status

    @_in_time
    async def change_many(
        self, workflow: str, ids: list[str], change: Change, request_id: str
    ) -> BatchChanges:
        return await self._plane.change_many(
            self._account, workflow, ids, _ours(change), request_id=request_id
        )

    @_in_time
    async def change_matching(
        self, workflow: str, body: Mapping[str, Any], change: Change, request_id: str
    ) -> tuple[BatchChanges, str | None]:
        asked = parse_statuses(_encode({**body, "status": change.change}))
        assert isinstance(asked.which, ListQuery)
        return await self._plane.change_matching(
            self._account, workflow, asked.which, _ours(change), request_id=request_id
        )

    @_in_time
    async def delete(self, workflow: str, instance_id: str, request_id: str) -> None:
        await self._plane.delete_instance(
            self._account, workflow, instance_id, request_id=request_id
        )

    @_in_time
    async def delete_many(self, workflow: str, ids: list[str], request_id: str) -> BatchChanges:
        return await self._plane.delete_many(self._account, workflow, ids, request_id=request_id)

    @_in_time
    async def delete_matching(
        self, workflow: str, body: Mapping[str, Any], request_id: str
    ) -> tuple[BatchChanges, str | None]:
        which = parse_selection(_encode(body))
        assert isinstance(which, ListQuery)
        return await self._plane.delete_matching(
            self._account, workflow, which, request_id=request_id
        )

    @_in_time
    async def terminate_all(self, workflow: str, statuses: list[str]) -> bool:
        return await self._plane.terminate_all(self._account, workflow, statuses, source=_SOURCE)

    @_in_time
    async def send_event(
        self, workflow: str, instance_id: str, event_type: str, payload: bytes, request_id: str
    ) -> str:
        sent_ms = await self._plane.send_event(
            self._account, workflow, instance_id, event_type, payload, request_id=request_id
        )
        return shapes.iso(sent_ms)

    @_in_time
    async def events(
        self, workflow: str, instance_id: str, cursor: int, types: Sequence[str], wait_ms: int
    ) -> InstanceEvents:
        page = await self._plane.watching.events(
            self._account, workflow, instance_id, cursor=cursor, types=types, wait_ms=wait_ms
        )
        return _seen(_events, watching_shapes.page_shape(page, instance_id))

    @_in_time
    async def waiting(self, workflow: str, instance_id: str) -> Waiting:
        view, slot = await self._plane.watching.waiting(self._account, workflow, instance_id)
        return _seen(_waiting, watching_shapes.waiting_shape(instance_id, view, slot))

    async def stream(self, workflow: str, instance_id: str, name: str) -> AsyncIterator[bytes]:
        found = await self._plane.step_output(self._account, workflow, instance_id, name)
        if found.stream_size is None:
            raise no_stream(name)
        size = found.stream_size
        async for part in self._plane.stream(self._account, workflow, instance_id, name, size):
            yield part

    @_in_time
    async def step_output(
        self, workflow: str, instance_id: str, name: str, attempt: int
    ) -> StepOutputStatus:
        found = await self._plane.step_output(
            self._account, workflow, instance_id, name, attempt=attempt
        )
        return _seen(_step_output, shapes.step_output(found))

    @_in_time
    async def list_page(
        self, workflow: str, filters: Mapping[str, str], cursor: str | None
    ) -> LinePage:
        given = dict(filters) if cursor is None else {**filters, "cursor": cursor}
        found = await self._plane.list_instances(
            self._account, workflow, parse_list(urlencode(given).encode())
        )
        uuid = found.workflow.uuid
        lines = [shapes.listed(row, uuid) for row in found.page.rows]
        return LinePage(_seen(_lines, lines), found.cursor)

    @_in_time
    async def statistics(self) -> dict[str, dict[str, Any]]:
        return await self._plane.statistics()

    @_in_time
    async def list_workflows(self, page: int) -> list[WorkflowSummary]:
        found, _ = await self._plane.list_workflows(
            self._account, page=page, per_page=limits.PER_PAGE_MAX
        )
        return [_seen(_workflow, workflow_shape(item)) for item in found]

    @_in_time
    async def get_workflow(self, workflow: str) -> WorkflowSummary:
        found = await self._plane.get_workflow(self._account, workflow)
        return _seen(_workflow, workflow_shape(found))

    async def manage(
        self,
        kind: type[T],
        method: str,
        words: Sequence[str],
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | bytes | None = None,
        request_id: str | None = None,
        standard: bool = False,
    ) -> T:
        raise InvalidArgument(
            f"{method} /{'/'.join(words)} needs a server: an embedded runtime has one account and "
            "no tokens. Right: toque.connect('http://127.0.0.1:8787')."
        )

    async def close(self) -> None:
        """The control plane belongs to the runtime, which closes it."""
