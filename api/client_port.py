"""What a client asks of a control plane, however it reaches it.

Implemented over HTTP (`client_http`) and in the same process (`client_embedded`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..runtime import limits
from .changes import BatchChanges, Change
from .client_values import (
    CallOptions,
    InstanceStatus,
    LinePage,
    StepOutputStatus,
    WorkflowSummary,
)
from .service import NewInstance
from .watched import InstanceEvents, Waiting

T = TypeVar("T")


def wait_max_ms(timeout_s: float | None) -> int:
    """The longest wait that a call may ask for which has so long in all; None: any time."""
    return limits.WAIT_MAX_MS if timeout_s is None else max(1, int(timeout_s * 500))


class Backend(Protocol):
    """How a client reaches a control plane. Answers are final: repeats happen inside.

    Attributes:
        account: whose workflows.
        retries: how often calls were made again, inside.
        wait_max_ms: the longest wait that one call may ask for.
    """

    @property
    def account(self) -> str: ...

    @property
    def retries(self) -> int: ...

    @property
    def wait_max_ms(self) -> int: ...

    def with_options(self, options: CallOptions) -> Backend: ...

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

    async def change_matching(
        self, workflow: str, body: Mapping[str, Any], change: Change, request_id: str
    ) -> tuple[BatchChanges, str | None]: ...

    async def delete(self, workflow: str, instance_id: str, request_id: str) -> None: ...

    async def delete_many(self, workflow: str, ids: list[str], request_id: str) -> BatchChanges: ...

    async def delete_matching(
        self, workflow: str, body: Mapping[str, Any], request_id: str
    ) -> tuple[BatchChanges, str | None]: ...

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
        """An operation of `/toque/v1`, its result read as `kind`.

        Args:
            kind: what the result is.
            method, words: the operation; `words` are its path.
            query, body, request_id: of the request.
            standard: below the account's path of Cloudflare's API instead.
        """
        ...

    async def close(self) -> None: ...
