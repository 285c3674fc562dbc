"""The blocking client: the async client's twin, for code without `async`.

    with toque.connect_blocking("http://127.0.0.1:8787", token) as client:
        instance = client.create_instance("orders", "order-42", {"order": 42})
        status = instance.wait(timeout=60)

Made by docs/twin.py from the async client; change that, then run `make docs`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, TypeVar, overload

from ..engines.durations import Duration
from ..runtime import limits
from .changes import BatchChanges, Change, FromStep
from .client import Client
from .client_blocking_parts import (
    BlockingAccounts,
    BlockingLimits,
    BlockingMigrations,
    BlockingScripts,
    BlockingTokens,
)
from .client_http import connect
from .client_instance import Instance
from .client_portal import Blocking, Portal
from .client_values import (
    CreateProgress,
    CreateResult,
    InstanceLine,
    InstanceSpec,
    InstanceStatus,
    Script,
    StepOutputStatus,
    Version,
    WhoAmI,
    WorkflowSummary,
)
from .watched import InstanceEvent, Waiting

T = TypeVar("T")


class BlockingInstance(Blocking[Instance]):
    """A handle to one instance. Making one does not ask the server.

    Attributes:
        id, workflow: which instance.
        last: the last status that this handle saw; None if none.
    """

    def status(self, *, steps: bool = True) -> InstanceStatus:
        """How it stands now, with its steps.

        Args:
            steps: False leaves them out, which is less to send.
        """
        return self._portal.run(self._inner.status(steps=steps))

    def wait(
        self, timeout: Duration | None = None, *, raise_on_error: bool = False
    ) -> InstanceStatus:
        """The status when it has ended (without steps).

        Args:
            timeout: seconds, or `"5 minutes"`; None: however long it takes.
            raise_on_error: raise `InstanceFailed` if it ended errored or terminated.

        Raises:
            TimeoutError: it had not ended in time.
        """
        return self._portal.run(self._inner.wait(timeout, raise_on_error=raise_on_error))

    @overload
    def output(self, *, timeout: Duration | None = None) -> Any: ...

    @overload
    def output(self, expected: type[T], *, timeout: Duration | None = None) -> T: ...

    def output(self, expected: Any = Any, *, timeout: Duration | None = None) -> Any:
        """What `run` returned, when it has; as a type, if one is given.

        Raises:
            InstanceFailed: it ended errored or terminated.
            TimeoutError: it had not ended in time.
            PayloadMismatch: its output does not fit the type.
        """
        return self._portal.run(self._inner.output(expected, timeout=timeout))

    def stream(self, name: str) -> Iterator[bytes]:
        """The content of a step's result that is a stream, part by part.

        Args:
            name: the step's public name, for example `fetch-1`.

        Raises:
            StepNotFound: there is no such step.
            InvalidArgument: what it gave is no stream.
        """
        return self._portal.iterate(self._inner.stream(name))

    def step_output(self, name: str, *, attempt: int = 0) -> StepOutputStatus:
        """What a step gave, in full, and how it stands; for a stream its name and length.

        Args:
            name: the step's public name, for example `fetch-1`.
            attempt: how that attempt ended; 0: the step.

        Raises:
            StepNotFound: there is no such step or attempt.
        """
        return self._portal.run(self._inner.step_output(name, attempt=attempt))

    def send_event(
        self, event_type: str, payload: Any = None, *, request_id: str | None = None
    ) -> None:
        """Send it an event; it may come before the instance waits for it.

        Args:
            event_type, payload: what `step.wait_for_event` waits for, and gets.
            request_id: the same one again is the same event, and sends no other.
        """
        self._portal.run(self._inner.send_event(event_type, payload, request_id=request_id))

    def terminate(self, *, rollback: bool = False, request_id: str | None = None) -> None:
        """End it at once; with `rollback`, undo first what its steps did, as far as they say how.

        `InvalidTransition` if it has ended.
        """
        self._portal.run(self._inner.terminate(rollback=rollback, request_id=request_id))

    def pause(self, *, request_id: str | None = None) -> None:
        """Have it do nothing more until it is resumed; steps in flight end first."""
        self._portal.run(self._inner.pause(request_id=request_id))

    def resume(self, *, request_id: str | None = None) -> None:
        """Have it go on after a pause; its timers move by the pause's length."""
        self._portal.run(self._inner.resume(request_id=request_id))

    def restart(self, *, from_step: FromStep | None = None, request_id: str | None = None) -> None:
        """Have it begin again: the same id and params, a new run.

        Args:
            from_step: results of steps that began before that one are kept: its name, or
                `("name", 2)`, or `{"name": ..., "count": 2, "type": "waitForEvent"}`.
        """
        self._portal.run(self._inner.restart(from_step=from_step, request_id=request_id))

    def cancel(self, *, request_id: str | None = None) -> None:
        """Raise `asyncio.CancelledError` in it, so that it can clean up; see `step.shield`."""
        self._portal.run(self._inner.cancel(request_id=request_id))

    def delete(self, *, request_id: str | None = None) -> None:
        """Remove it, whatever its status; its id is free at once."""
        self._portal.run(self._inner.delete(request_id=request_id))

    def events(
        self, *, cursor: int = 0, types: Iterable[str] = (), follow: bool = True
    ) -> Iterator[InstanceEvent]:
        """What has happened to it, then what happens, until it has ended.

        Args:
            cursor: `event_id` of the last event seen; 0: from the start.
            types: only these, for example `("step_completed", "workflow_completed")`.
            follow: False: stop where history ends now.
        """
        return self._portal.iterate(self._inner.events(cursor=cursor, types=types, follow=follow))

    def why(self) -> Waiting:
        """Why it does not go on: a slot, a timer, an event, a step that runs, its code."""
        return self._portal.run(self._inner.why())

    @property
    def workflow(self) -> str:
        """The workflow's name."""
        return self._inner.workflow

    @property
    def id(self) -> str:
        """The instance's id."""
        return self._inner.id

    @property
    def last(self) -> InstanceStatus | None:
        """The last status that this handle saw; None if none."""
        return self._inner.last

    def __repr__(self) -> str:
        return repr(self._inner)


class BlockingClient(Blocking[Client]):
    """A client of one account.

    Args:
        backend: how the control plane is reached.
        entropy: request ids.
    """

    def new_request_id(self, given: str | None = None) -> str:
        """An id for one change: the one that is given, or a new one."""
        return self._inner.new_request_id(given)

    def create_instance(
        self,
        workflow: str,
        id: str | None = None,
        params: Any = None,
        wait: Duration | None = None,
        *,
        request_id: str | None = None,
        retention: tuple[Duration, Duration] | None = None,
    ) -> BlockingInstance:
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
        return BlockingInstance(
            self._portal,
            self._portal.run(
                self._inner.create_instance(
                    workflow, id, params, wait, request_id=request_id, retention=retention
                )
            ),
        )

    def run_instance(
        self,
        workflow: str,
        id: str | None = None,
        params: Any = None,
        timeout: Duration | None = None,
    ) -> InstanceStatus:
        """Make an instance and give its outcome; `InstanceFailed` if it is not complete."""
        return self._portal.run(self._inner.run_instance(workflow, id, params, timeout))

    def create_instances(
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
        return self._portal.run(
            self._inner.create_instances(
                workflow,
                instances,
                progress=progress,
                parallel=parallel,
                raise_on_error=raise_on_error,
                request_id=request_id,
            )
        )

    def change_instances(
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
        return self._portal.run(
            self._inner.change_instances(workflow, ids, change, request_id=request_id)
        )

    def change_matching(
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
    ) -> Iterator[BatchChanges]:
        """Change all instances that match, `limit` at a time; gives what became of each.

        What is created meanwhile may be left as it is.
        """
        return self._portal.iterate(
            self._inner.change_matching(
                workflow,
                change,
                status=status,
                prefix=prefix,
                date_start=date_start,
                date_end=date_end,
                limit=limit,
                request_id=request_id,
            )
        )

    def delete_instances(
        self, workflow: str, ids: Iterable[str], *, request_id: str | None = None
    ) -> BatchChanges:
        """Remove up to 100 instances, each by itself; tells which were not there."""
        return self._portal.run(self._inner.delete_instances(workflow, ids, request_id=request_id))

    def delete_matching(
        self,
        workflow: str,
        *,
        status: str | Iterable[str] | None = None,
        prefix: str = "",
        date_start: str | None = None,
        date_end: str | None = None,
        limit: int = limits.CHANGE_BATCH_MAX,
        request_id: str | None = None,
    ) -> Iterator[BatchChanges]:
        """Remove all instances that match, `limit` at a time; gives what became of each.

        What is created meanwhile may be left as it is.
        """
        return self._portal.iterate(
            self._inner.delete_matching(
                workflow,
                status=status,
                prefix=prefix,
                date_start=date_start,
                date_end=date_end,
                limit=limit,
                request_id=request_id,
            )
        )

    def terminate_instances(self, workflow: str, statuses: Iterable[str] | None = None) -> bool:
        """Terminate all that have not ended, or those of some statuses, in the background.

        False: that is under way already.
        """
        return self._portal.run(self._inner.terminate_instances(workflow, statuses))

    def get_instance(self, workflow: str, id: str) -> BlockingInstance:
        """A handle to an instance that exists; `InstanceNotFound` otherwise."""
        return BlockingInstance(
            self._portal, self._portal.run(self._inner.get_instance(workflow, id))
        )

    def instance(self, workflow: str, id: str) -> BlockingInstance:
        """A handle, without asking whether the instance exists."""
        return BlockingInstance(self._portal, self._inner.instance(workflow, id))

    def list_instances(
        self,
        workflow: str,
        *,
        status: str | Iterable[str] = (),
        date_start: str | None = None,
        date_end: str | None = None,
        direction: str = "desc",
        per_page: int = limits.PER_PAGE_MAX,
        prefix: str = "",
    ) -> Iterator[InstanceLine]:
        """All instances, by creation (those with a prefix: by id); each exactly once."""
        return self._portal.iterate(
            self._inner.list_instances(
                workflow,
                status=status,
                date_start=date_start,
                date_end=date_end,
                direction=direction,
                per_page=per_page,
                prefix=prefix,
            )
        )

    def list_workflows(self) -> list[WorkflowSummary]:
        """All workflows of the account, by name."""
        return self._portal.run(self._inner.list_workflows())

    def get_workflow(self, workflow: str) -> WorkflowSummary:
        """A workflow, or `WorkflowNotFound`."""
        return self._portal.run(self._inner.get_workflow(workflow))

    def delete_workflow(self, workflow: str) -> None:
        """Remove a workflow and its instances; its name is free."""
        self._portal.run(self._inner.delete_workflow(workflow))

    def versions(self, workflow: str) -> list[Version]:
        """A workflow's versions, newest first."""
        return self._portal.run(self._inner.versions(workflow))

    def deploy(
        self, path: str | PathLike[str], script: str | None = None, *, take_over: bool = False
    ) -> Script:
        """Deploy the code of a file or a folder to the client's account; see `scripts.deploy`."""
        return self._portal.run(self._inner.deploy(path, script, take_over=take_over))

    def whoami(self) -> WhoAmI:
        """The account, scope and name of this client's token."""
        return self._portal.run(self._inner.whoami())

    @property
    def accounts(self) -> BlockingAccounts:
        """Accounts: for operators."""
        return BlockingAccounts(self._portal, self._inner.accounts)

    @property
    def tokens(self) -> BlockingTokens:
        """Tokens of an account."""
        return BlockingTokens(self._portal, self._inner.tokens)

    @property
    def limits(self) -> BlockingLimits:
        """Limits of the account and of its workflows."""
        return BlockingLimits(self._portal, self._inner.limits)

    @property
    def scripts(self) -> BlockingScripts:
        """Deployed code."""
        return BlockingScripts(self._portal, self._inner.scripts)

    @property
    def migrations(self) -> BlockingMigrations:
        """Moving accounts from V1 to V2: for operators."""
        return BlockingMigrations(self._portal, self._inner.migrations)

    @property
    def retries(self) -> int:
        """How often calls were made again because the server could not take them just then.

        Of this client and of those that `with_options` gave.
        """
        return self._inner.retries

    def with_options(
        self, *, timeout: Duration | None = None, retry_for: Duration | None = None
    ) -> BlockingClient:
        """A client over the same connections whose calls take other times.

        Args:
            timeout: the whole of each call, with its repeats; past it a change is told as
                `OutcomeUnknown`. It does not bound `wait`, which has a time-out of its own.
            retry_for: how long a call is repeated while the server can't take it; 0: not at all.
        """
        return BlockingClient(
            self._portal, self._inner.with_options(timeout=timeout, retry_for=retry_for)
        )

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Counters of each shard of the server, by its name."""
        return self._portal.run(self._inner.statistics())

    def close(self) -> None:
        """Close connections, also those of clients that `with_options` gave."""
        self._portal.close(self._inner.close)

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def connect_blocking(
    url: str,
    token: str | None = None,
    account: str = "default",
    *,
    retry_for: Duration = limits.CLIENT_RETRY_FOR_MS / 1000,
    timeout: Duration | None = None,
) -> BlockingClient:
    """A client of the server at `url`.

    Args:
        url: for example `http://127.0.0.1:8787`.
        token: None: the environment variable `TOQUE_TOKEN`.
        account: whose workflows.
        retry_for: how long a call is repeated while the server can't take it.
        timeout: of each call as a whole, with its repeats; None: as long as the server may take.

    Raises:
        InvalidArgument: one of them is not as it must be. No call is made here.
    """
    client = connect(url, token, account, retry_for=retry_for, timeout=timeout)
    return BlockingClient(Portal(), client)
