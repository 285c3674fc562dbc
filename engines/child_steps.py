"""Children in `run`: `step.start_child`, `step.run_child`, and the handle of a child.

A base of `step.WorkflowStep`. A start is a record, and so is the wait for the end: between the two
`run` may do anything. The child's class only says its name and what its output is read as; its
code is what its workflow has.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from ..runtime.codec import NULL, decode_json, decode_json_as, encode_json
from ..runtime.errors import InvalidArgument, InvalidId
from ..runtime.guarded import shown
from ..runtime.ids import check_instance_id, check_step_name, check_workflow_name
from .calls import StepCall
from .child_calls import CANCEL_IT, ON_PARENT_END, Wanted
from .failures import EventTimeout, StepMisuse
from .journal import ChildCall, Record
from .shapes import UnfitType, usable_type

if TYPE_CHECKING:
    from .claiming import Claiming

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
MARK = "__toque_workflow__"
"""The attribute that `workflow` gives to functions."""


class Runs(Protocol[R_co]):
    """A workflow class."""

    async def run(self, event: Any, step: Any) -> R_co: ...


class Child(Generic[T]):
    """A child that has been started: what `step.start_child` gives.

    Attributes:
        workflow: the name of its workflow.
        id: its id.
    """

    __slots__ = ("_call", "_end", "_is_asked", "_name", "_returns", "_step", "id", "workflow")

    def __init__(self, step: ChildSteps, name: str, call: ChildCall, returns: Any) -> None:
        self.workflow = call.workflow
        self.id = call.id
        self._step = step
        self._name = name
        self._call = call
        self._returns = returns
        self._is_asked = False
        self._end: tuple[Exception | None, Any] | None = None

    def __repr__(self) -> str:
        return f"Child(workflow={self.workflow!r}, id={self.id!r})"

    def result(self) -> StepCall[T]:
        """Wait until the child has ended; gives what its `run` returned.

        Holds no memory or slot meanwhile. May be awaited again, one task at a time: the child's end
        stays what it is. With `asyncio.timeout` around it, the child goes on when time is up.

        Raises:
            ChildFailed: it ended otherwise: errored, terminated, cancelled or deleted.
            PayloadMismatch: its output does not fit the return annotation of its `run`.
        """
        return self._step._call(self._name, self._result)

    async def _result(self) -> Any:
        return await self._arrive(self._name, is_owned=False)

    async def _arrive(self, name: str, *, is_owned: bool) -> Any:
        """As `result`; if it `is_owned`, who gives the wait up lets the child go."""
        if self._end is None:
            if self._is_asked:
                raise StepMisuse(
                    f"two tasks wait for the result of child {self.id!r} at the same time. Right: "
                    "`task = asyncio.create_task(child.result())`, which may be awaited often."
                )
            self._is_asked = True
            try:
                given = await self._step._await_child(
                    name, self._call, self._returns, is_owned=is_owned
                )
                self._end = None, given
            except Exception as failed:
                self._end = failed, None
            finally:
                self._is_asked = False
        error, value = self._end
        if error is not None:
            raise error
        return value


class ChildSteps:
    """See the module's description."""

    __slots__ = ("_core",)
    _core: Claiming

    @overload
    def start_child(
        self,
        name: str,
        workflow: type[Runs[T]],
        params: Any = None,
        *,
        id: str | None = None,
        on_parent_end: str = CANCEL_IT,
    ) -> StepCall[Child[T]]: ...

    @overload
    def start_child(
        self,
        name: str,
        workflow: str,
        params: Any = None,
        *,
        id: str | None = None,
        on_parent_end: str = CANCEL_IT,
    ) -> StepCall[Child[Any]]: ...

    @overload
    def start_child(
        self,
        name: str,
        workflow: Callable[[Any, Any], Coroutine[Any, Any, T]],
        params: Any = None,
        *,
        id: str | None = None,
        on_parent_end: str = CANCEL_IT,
    ) -> StepCall[Child[T]]: ...

    def start_child(
        self,
        name: str,
        workflow: Any,
        params: Any = None,
        *,
        id: str | None = None,
        on_parent_end: str = CANCEL_IT,
    ) -> StepCall[Any]:
        """Start an instance of a workflow of the same account; it exists when this returns.

        It is made once, whatever crashes. It waits in its own workflow's queue, and rates and
        limits hold for it as for any other: while they refuse it, it is asked for again.

        Args:
            name: of the step.
            workflow: a workflow class, a decorated function, or a workflow's name.
            params: as of a create.
            id: its id; None: one that begins with this instance's own id and a `/`.
            on_parent_end: what becomes of it if this run ends first, however it does, also by a
                restart or `continue_as_new`: `cancel`, `terminate` or `abandon` (it goes on).

        Raises:
            ChildIdTaken: the id is in use by another instance.
            ChildWorkflowNotFound: the account has no such workflow.
            TooManyChildren: too many have not ended, or they start each other too deep.
            ChildNotStarted: it was refused otherwise.
        """
        wanted, returns = _wanted(name, workflow, params, id, on_parent_end)
        return self._call(name, self._start_child, name, wanted, returns)

    @overload
    def run_child(
        self,
        name: str,
        workflow: type[Runs[T]],
        params: Any = None,
        *,
        id: str | None = None,
        on_parent_end: str = CANCEL_IT,
    ) -> StepCall[T]: ...

    @overload
    def run_child(
        self,
        name: str,
        workflow: str,
        params: Any = None,
        *,
        id: str | None = None,
        on_parent_end: str = CANCEL_IT,
    ) -> StepCall[Any]: ...

    @overload
    def run_child(
        self,
        name: str,
        workflow: Callable[[Any, Any], Coroutine[Any, Any, T]],
        params: Any = None,
        *,
        id: str | None = None,
        on_parent_end: str = CANCEL_IT,
    ) -> StepCall[T]: ...

    def run_child(
        self,
        name: str,
        workflow: Any,
        params: Any = None,
        *,
        id: str | None = None,
        on_parent_end: str = CANCEL_IT,
    ) -> StepCall[Any]:
        """Start a child and wait for its result: `start_child` and `Child.result` in one.

        Given up (by a time-out around it, say), it lets the child go, as the end of this run would.
        """
        wanted, returns = _wanted(name, workflow, params, id, on_parent_end)
        return self._call(name, self._run_child, name, wanted, returns)

    # --- inside -----------------------------------------------------------------------------

    def _call(
        self, name: str, begin: Callable[..., Coroutine[Any, Any, T]], *args: Any
    ) -> StepCall[T]:
        core = self._core
        if core.loop.is_closed() and core.loop.is_pestered():
            return StepCall(name, core.calls, _never)
        core.refuse_misuse(name)
        return StepCall(name, core.calls, begin, *args)

    async def _start_child(self, name: str, wanted: Wanted, returns: Any) -> Child[Any]:
        claim = self._core.claim_start(name, wanted, partial(self._handle, name, returns))
        try:
            child: Child[Any] = await claim.future
        except asyncio.CancelledError:
            self._core.abandon(claim)
            raise
        return child

    async def _run_child(self, name: str, wanted: Wanted, returns: Any) -> Any:
        child = await self._start_child(name, wanted, returns)
        return await self._await_child(name, child._call, returns, is_owned=True)

    def _handle(self, name: str, returns: Any, record: Record) -> Child[Any]:
        assert record.child is not None, "the record of a start says what it started"
        return Child(self, name, record.child, returns)

    async def _await_child(
        self, name: str, call: ChildCall, returns: Any, *, is_owned: bool
    ) -> Any:
        while True:
            claim = self._core.claim_child(name, call, is_owned, partial(_output, returns))
            try:
                return await claim.future
            except asyncio.CancelledError:
                self._core.abandon(claim)
                raise
            except EventTimeout:
                continue  # a wait lasts a year at most


def _output(returns: Any, record: Record) -> Any:
    raw = record.result or NULL
    return decode_json(raw) if returns is Any else decode_json_as(raw, returns)


async def _never() -> Any:
    """What waits for it is closed where it waits: a `run` that is over must not be told again."""
    while True:
        await asyncio.sleep(0)


def _wanted(
    name: str, workflow: Any, params: Any, id: str | None, on_parent_end: str
) -> tuple[Wanted, Any]:
    check_step_name(name)
    if on_parent_end not in ON_PARENT_END:
        raise InvalidArgument(
            f"on_parent_end of child {name!r} is {shown(on_parent_end)}; it is one of "
            f"{', '.join(ON_PARENT_END)}."
        )
    workflow_name, returns = _name_and_output(name, workflow)
    if id is not None:
        check_instance_id(id)
    body = encode_json(params, f"the params of child {name!r}")
    return Wanted(workflow_name, id or "", on_parent_end, body), returns


def _name_and_output(step: str, workflow: Any) -> tuple[str, Any]:
    """The name of a workflow, and what its output is read as."""
    if isinstance(workflow, str):
        return check_workflow_name(workflow), Any
    mark = getattr(workflow, MARK, None)
    run = getattr(workflow, "run", None)
    if inspect.isclass(workflow) and run is not None and inspect.iscoroutinefunction(run):
        name = workflow.__dict__.get("name", workflow.__name__)
    elif mark is not None and callable(workflow):
        name, run = mark.name, workflow
    else:
        raise InvalidArgument(
            f"child {step!r} is to be of {shown(workflow)}, which is no workflow. Right: a class "
            "with `async def run(self, event, step)`, a function with `@workflow`, or a "
            "workflow's name."
        )
    try:
        return check_workflow_name(name), return_type(run)
    except (InvalidId, UnfitType) as error:
        raise InvalidArgument(f"child {step!r} can't be of {shown(workflow)}: {error}") from None


def return_type(run: Callable[..., Any]) -> Any:
    """What the result of a `run` must fit.

    Raises:
        UnfitType: its annotation has no JSON form.
    """
    target = getattr(inspect.unwrap(run), "__func__", inspect.unwrap(run))
    return usable_type(getattr(target, "__annotations__", {}).get("return", Any), target)
