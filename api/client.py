"""The SDK: one client over HTTP or over an embedded runtime.

    async with toque.connect("http://127.0.0.1:8787", token) as client:
        instance = await client.create_instance("orders", "order-42", {"order": 42})
        status = await instance.wait(timeout=60)

Errors are the classes of `toque.runtime.errors`, wherever they were raised. Changes carry a
request id, so they may be repeated (the HTTP backend does so by itself) and take effect once.
What is given is checked here with the server's own validators, before anything is sent. The
blocking twin of all this, `client_blocking`, is made from these files by `make docs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any

from ..engines.durations import Duration, duration_ms
from ..engines.failures import EventsBufferFull  # noqa: F401 - its code is known by import
from ..runtime import limits
from ..runtime.entropy import Entropy
from ..runtime.ids import check_id_prefix, check_instance_id
from . import client_checks as check
from .changes import BatchChanges, Change
from .client_admin import (
    AccountsClient,
    LimitsClient,
    MigrationsClient,
    ScriptsClient,
    TokensClient,
)
from .client_batches import BatchCreate, creates_of, verdict
from .client_instance import Instance, check_success, late
from .client_port import Backend
from .client_values import (
    CallOptions,
    CreateProgress,
    CreateResult,
    InstanceLine,
    InstanceSpec,
    InstanceStatus,
    Script,
    Version,
    WhoAmI,
    WorkflowSummary,
    created_status,
)
from .service import NewInstance

__all__ = ["Client", "Instance", "InstanceStatus"]


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
        return self._entropy.new_id() if given is None else check.request_id(given)

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
        check.workflow(workflow)
        new = check.new_instance(id, params, retention)
        wait_ms = 0 if wait is None else duration_ms(wait, "wait", max_ms=limits.WAIT_MAX_MS)
        made = await self.backend.create(workflow, new, wait_ms, self.new_request_id(request_id))
        last = created_status(made, new.params)
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
        seconds = check.seconds(timeout, "timeout")
        first = most if seconds is None else min(seconds, most)
        instance = await self.create_instance(workflow, id, params, wait=first)
        if instance.last is not None and instance.last.finished:
            return check_success(instance.last)
        left = None if seconds is None else max(0.0, seconds - (loop.time() - began))
        try:
            return await instance.wait(left, raise_on_error=True)
        except TimeoutError:
            raise late(instance, seconds) from None

    async def create_instances(
        self,
        workflow: str,
        instances: Iterable[InstanceSpec | Mapping[str, Any]]
        | AsyncIterable[InstanceSpec | Mapping[str, Any]],
        *,
        progress: Callable[[CreateProgress], object] | None = None,
        parallel: int = limits.CLIENT_PARALLEL_CREATES_MAX,
        raise_on_error: bool = True,
        request_id: str | None = None,
    ) -> list[CreateResult]:
        """Make any number of instances, in batches, a few under way at a time.

        A list is checked whole before anything is sent; what an iterator gives is checked as it
        is read, so any number fits into memory but its results.

        Args:
            workflow: the workflow's name.
            instances: mappings with `id`, `params` and `retention`, each optional, as in
                `create_instance`.
            progress: told after each batch.
            parallel: batches under way at most.
            raise_on_error: False: give the results even if some creates have failed.
            request_id: the same one again, with the same instances, makes what was not made.

        Returns:
            What became of each, in the order given: `created`, `duplicate` (the id is in use),
            `failed` or `unknown`.

        Raises:
            BatchIncomplete: some have failed; its `results` tells of all. If all have failed for
                the same reason, that error itself.
        """
        check.workflow(workflow)
        news, total = creates_of(instances)
        check.callback(progress, "progress")
        check.whole(parallel, "parallel", 1, limits.CLIENT_CONNECTIONS_MAX)
        check.flag(raise_on_error, "raise_on_error")
        base = self.new_request_id(request_id)
        check.request_id(f"{base}.{10**9}")

        async def send(batch: list[NewInstance], number: int) -> list[str]:
            return await self.backend.create_batch(workflow, batch, f"{base}.{number}")

        results = await BatchCreate(send, parallel, progress, total).run(news)
        if raise_on_error:
            verdict(results)
        return results

    async def change_instances(
        self,
        workflow: str,
        ids: Iterable[str],
        change: str | Change,
        *,
        request_id: str | None = None,
    ) -> BatchChanges:
        """Change the status of up to 100 instances, each by itself.

        Args:
            workflow, ids: which.
            change: `"pause"`, `"resume"`, `"terminate"`, `"restart"`, `"cancel"`, or a `Change`
                that says more.
            request_id: the same one again is the same change, and takes effect once.
        """
        check.workflow(workflow)
        wanted, found = check.change(change), check.ids(ids)
        key = self.new_request_id(request_id)
        return await self.backend.change_many(workflow, found, wanted, key)

    async def change_matching(
        self,
        workflow: str,
        change: str | Change,
        *,
        status: str | Iterable[str] | None = None,
        prefix: str = "",
        date_start: str | None = None,
        date_end: str | None = None,
        limit: int = limits.CHANGE_BATCH_MAX,
        request_id: str | None = None,
    ) -> AsyncIterator[BatchChanges]:
        """Change all instances that match, `limit` at a time; gives what became of each.

        What is created meanwhile may be left as it is.
        """
        check.workflow(workflow)
        wanted, key = check.change(change), self.new_request_id(request_id)
        body = check.selection(status, prefix, date_start, date_end, limit)
        while True:
            done, body["cursor"] = await self.backend.change_matching(workflow, body, wanted, key)
            yield done
            if body["cursor"] is None:
                return

    async def delete_instances(
        self, workflow: str, ids: Iterable[str], *, request_id: str | None = None
    ) -> BatchChanges:
        """Remove up to 100 instances, each by itself; tells which were not there."""
        check.workflow(workflow)
        found = check.ids(ids)
        return await self.backend.delete_many(workflow, found, self.new_request_id(request_id))

    async def delete_matching(
        self,
        workflow: str,
        *,
        status: str | Iterable[str] | None = None,
        prefix: str = "",
        date_start: str | None = None,
        date_end: str | None = None,
        limit: int = limits.CHANGE_BATCH_MAX,
        request_id: str | None = None,
    ) -> AsyncIterator[BatchChanges]:
        """Remove all instances that match, `limit` at a time; gives what became of each.

        What is created meanwhile may be left as it is.
        """
        check.workflow(workflow)
        key = self.new_request_id(request_id)
        body = check.selection(status, prefix, date_start, date_end, limit)
        while True:
            done, body["cursor"] = await self.backend.delete_matching(workflow, body, key)
            yield done
            if body["cursor"] is None:
                return

    async def terminate_instances(
        self, workflow: str, statuses: Iterable[str] | None = None
    ) -> bool:
        """Terminate all that have not ended, or those of some statuses, in the background.

        False: that is under way already.
        """
        found = [] if statuses is None else check.selected(statuses, "statuses")
        return await self.backend.terminate_all(check.workflow(workflow), found)

    async def get_instance(self, workflow: str, id: str) -> Instance:
        """A handle to an instance that exists; `InstanceNotFound` otherwise."""
        instance = self.instance(workflow, id)
        await instance.status(steps=False)
        return instance

    def instance(self, workflow: str, id: str) -> Instance:
        """A handle, without asking whether the instance exists."""
        return Instance(self, check.workflow(workflow), check_instance_id(id))

    async def list_instances(
        self,
        workflow: str,
        *,
        status: str | Iterable[str] = (),
        date_start: str | None = None,
        date_end: str | None = None,
        direction: str = "desc",
        per_page: int = limits.PER_PAGE_MAX,
        prefix: str = "",
    ) -> AsyncIterator[InstanceLine]:
        """All instances, by creation (those with a prefix: by id); each exactly once."""
        check.workflow(workflow)
        statuses = check.statuses(status)
        check.choice(direction, "direction", ("desc", "asc"))
        check.whole(per_page, "per_page", 1, limits.PER_PAGE_MAX)
        filters = {"direction": direction, "per_page": str(per_page)}
        if statuses:
            filters["status"] = ",".join(statuses)
        if prefix:
            filters["prefix"] = check_id_prefix(prefix)
        if date_start is not None:
            filters["date_start"] = check.date(date_start, "date_start")
        if date_end is not None:
            filters["date_end"] = check.date(date_end, "date_end")
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
        return await self.backend.get_workflow(check.workflow(workflow))

    async def delete_workflow(self, workflow: str) -> None:
        """Remove a workflow and its instances; its name is free."""
        words = ["workflows", check.workflow(workflow)]
        await self.backend.manage(Any, "DELETE", words, standard=True)

    async def versions(self, workflow: str) -> list[Version]:
        """A workflow's versions, newest first."""
        words = ["workflows", check.workflow(workflow), "versions"]
        found: list[Version] = []
        page = 1
        while True:
            query = {"page": str(page), "per_page": str(limits.PER_PAGE_MAX)}
            part = await self.backend.manage(
                list[Version], "GET", words, query=query, standard=True
            )
            found += part
            if len(part) < limits.PER_PAGE_MAX:
                return found
            page += 1

    async def deploy(
        self, path: str | PathLike[str], script: str | None = None, *, take_over: bool = False
    ) -> Script:
        """Deploy the code of a file or a folder to the client's account; see `scripts.deploy`."""
        return await self.scripts.deploy(path, script, take_over=take_over)

    async def whoami(self) -> WhoAmI:
        """The account, scope and name of this client's token."""
        return await self.backend.manage(WhoAmI, "GET", ["whoami"])

    @property
    def accounts(self) -> AccountsClient:
        """Accounts: for operators."""
        return AccountsClient(self.backend, self._entropy)

    @property
    def tokens(self) -> TokensClient:
        """Tokens of an account."""
        return TokensClient(self.backend, self._entropy)

    @property
    def limits(self) -> LimitsClient:
        """Limits of the account and of its workflows."""
        return LimitsClient(self.backend, self._entropy)

    @property
    def scripts(self) -> ScriptsClient:
        """Deployed code."""
        return ScriptsClient(self.backend, self._entropy)

    @property
    def migrations(self) -> MigrationsClient:
        """Moving accounts from V1 to V2: for operators."""
        return MigrationsClient(self.backend, self._entropy)

    @property
    def retries(self) -> int:
        """How often calls were made again because the server could not take them just then.

        Of this client and of those that `with_options` gave.
        """
        return self.backend.retries

    def with_options(
        self, *, timeout: Duration | None = None, retry_for: Duration | None = None
    ) -> Client:
        """A client over the same connections whose calls take other times.

        Args:
            timeout: the whole of each call, with its repeats; past it a change is told as
                `OutcomeUnknown`. It does not bound `wait`, which has a time-out of its own.
            retry_for: how long a call is repeated while the server can't take it; 0: not at all.
        """
        options = CallOptions(
            check.seconds(timeout, "timeout"), check.seconds(retry_for, "retry_for")
        )
        return Client(self.backend.with_options(options), self._entropy)

    async def statistics(self) -> dict[str, dict[str, Any]]:
        """Counters of each shard of the server, by its name."""
        return await self.backend.statistics()

    async def close(self) -> None:
        """Close connections, also those of clients that `with_options` gave."""
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
