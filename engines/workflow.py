"""What a workflow is: a class with `run`, or a decorated function, found in a file.

Loading a file never fails with anything but `WorkflowLoadError`, which names the file, the line
and the cause. The code hash of a definition is that of its bundle (see `archive`), and its file by
itself is the bundle of what came from no other. Instances record it, so that they go on with the
code that they began with, or it is noticed before anything happens.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args, get_origin, overload

from ..runtime.codec import decode_json, decode_json_as, type_name
from ..runtime.errors import InvalidArgument, InvalidId, ProgramRunsAtImport, WorkflowLoadError
from ..runtime.guarded import called, kind_of, shown, text_of
from ..runtime.ids import check_workflow_name
from ..runtime.limits import STEPS_PER_INSTANCE_DEFAULT, STEPS_PER_INSTANCE_MAX
from .archive import hash_of_files
from .child_steps import MARK, return_type
from .failures import PayloadMismatch
from .ray_options import check_ray_options
from .shapes import UnfitType, resolved, usable_type
from .step import WorkflowStep

P = TypeVar("P")
F = TypeVar("F", bound=Callable[..., Any])
SHARD, ACTOR = "shard", "actor"
"""Where instances run: in the process of their shard, many together | each in one of its own."""


class _Marked(NamedTuple):
    """What `workflow` was told."""

    name: str
    placement: str
    ray_options: Mapping[str, Any]
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WorkflowEvent(Generic[P]):
    """The first argument of `run`: what the instance was created with.

    Attributes:
        payload: the decoded parameters; as type `T` if `run` annotates `event: WorkflowEvent[T]`.
        timestamp: when the instance was created (with time zone); the same at each replay.
        instance_id: the instance's id.
        workflow_name: the workflow's name.
    """

    payload: P
    timestamp: datetime
    instance_id: str
    workflow_name: str


class WorkflowEntrypoint:
    """Base of workflows written as classes.

    The workflow's name is the class attribute `name`, or else the class's name as it is.
    An object of the class is made, without arguments, each time `run` is executed.

    With `placement = "actor"` each instance runs in a process of its own while it runs: on Ray an
    actor with the resources of `ray_options`, for example `{"num_gpus": 1}`.

    `limits = {"steps": 500}` sets how many steps and waits an instance may make; sleeps do not
    count. Not given: 10,000; at most 25,000.
    """

    name: ClassVar[str]
    placement: ClassVar[str] = SHARD
    ray_options: ClassVar[Mapping[str, Any]] = {}
    limits: ClassVar[Mapping[str, int]] = {}

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        """What the workflow does. Executed again at each replay: effects belong in steps."""
        raise NotImplementedError(f"{type(self).__name__} has no `run`")


@overload
def workflow(fn: F) -> F: ...


@overload
def workflow(
    *,
    name: str | None = None,
    placement: str = SHARD,
    ray_options: Mapping[str, Any] | None = None,
    limits: Mapping[str, int] | None = None,
) -> Callable[[F], F]: ...


def workflow(
    fn: F | None = None,
    *,
    name: str | None = None,
    placement: str = SHARD,
    ray_options: Mapping[str, Any] | None = None,
    limits: Mapping[str, int] | None = None,
) -> F | Callable[[F], F]:
    """Mark an `async def f(event, step)` as a workflow, named `name` or as the function.

    `placement`, `ray_options` and `limits` are as in `WorkflowEntrypoint`.

    >>> @workflow(name="order")
    ... async def handle_order(event, step):
    ...     return await step.do("charge", lambda: 1)
    """

    def mark(given: F) -> F:
        _check_run(given, ("event", "step"), f"workflow function {given.__qualname__}")
        setattr(
            given,
            MARK,
            _Marked(name or given.__name__, placement, ray_options or {}, limits or {}),
        )
        return given

    return mark if fn is None else mark(fn)


@dataclass(frozen=True)
class WorkflowDefinition:
    """A workflow that can be run.

    Attributes:
        name: its name in the account.
        class_name: name of the class or function in its file.
        entry: the class or function itself.
        code_hash: see the module's description.
        payload_type: what the event's payload is decoded as.
        placement, ray_options: see `WorkflowEntrypoint`.
        returns: what the result of `run` must fit.
        steps_max: how many steps an instance may make.
    """

    name: str
    class_name: str
    entry: Callable[..., Any]
    code_hash: str
    payload_type: Any = Any
    placement: str = SHARD
    ray_options: Mapping[str, Any] = field(default_factory=dict)
    returns: Any = Any
    steps_max: int = STEPS_PER_INSTANCE_DEFAULT

    def named(self, workflow: str) -> WorkflowDefinition:
        """The same code for a workflow that may have another name."""
        return self if self.name == workflow else replace(self, name=workflow)

    def start(
        self, params: bytes, timestamp: datetime, instance_id: str, step: WorkflowStep
    ) -> Coroutine[Any, Any, Any]:
        """The coroutine of `run` for an instance.

        Raises:
            PayloadMismatch: the params do not fit.
        """
        payload = decode_json(params) if self.payload_type is Any else self._typed(params)
        event = WorkflowEvent(payload, timestamp, instance_id, self.name)
        run = self.entry().run if isinstance(self.entry, type) else self.entry
        coro: Coroutine[Any, Any, Any] = run(event, step)
        return coro

    def _typed(self, params: bytes) -> Any:
        error, payload = called(decode_json_as, params, self.payload_type)
        if error is not None:
            raise PayloadMismatch(
                f"the params of workflow {self.name!r} do not fit {type_name(self.payload_type)}, "
                f"which its run() names: {text_of(error)}"
            )
        return payload


def definition_of(entry: Any, code_hash: str | None = None) -> WorkflowDefinition:
    """The definition of a workflow class or a decorated function.

    Raises:
        WorkflowLoadError: it is neither, or its name or `run` is not as it must be.
    """
    parameters: tuple[str, ...]
    if isinstance(entry, type) and issubclass(entry, WorkflowEntrypoint):
        name = entry.__dict__.get("name", entry.__name__)
        placement, options, limits = entry.placement, entry.ray_options, entry.limits
        run, parameters = entry.run, ("self", "event", "step")
        if run is WorkflowEntrypoint.run:
            raise _unfit(entry, "has no `run`. Right: `async def run(self, event, step): ...`")
    elif callable(entry) and hasattr(entry, MARK):
        (name, placement, options, limits), run = getattr(entry, MARK), entry
        parameters = ("event", "step")
    else:
        raise _unfit(
            entry, "is no workflow. Right: `class Order(WorkflowEntrypoint)`, or `@workflow`"
        )
    try:
        check_workflow_name(name)
    except InvalidId as error:
        raise _unfit(entry, str(error)) from None
    _check_run(run, parameters, f"run of {entry.__qualname__}")
    if code_hash is None:
        code_hash = hash_of(sys.modules.get(entry.__module__))
    _check_placement(entry, placement, options)
    try:
        payload_type, returns = _payload_type(run), return_type(run)
    except UnfitType as error:
        raise _unfit(
            entry,
            f"takes or returns {error}, which has no JSON form. Right: a dataclass, a pydantic "
            "model, dict[str, int], datetime, bytes, ...",
        ) from None
    return WorkflowDefinition(
        name,
        entry.__name__,
        entry,
        code_hash,
        payload_type,
        placement,
        dict(options),
        returns,
        _steps_max(entry, limits),
    )


def definitions_of(
    module: ModuleType, code_hash: str | None = None, folder: Path | None = None
) -> list[WorkflowDefinition]:
    """The workflows that a module defines (not those that it imports), in order of definition.

    Args:
        module: the module.
        code_hash: of the bundle that it is from; None: it is alone in it.
        folder: that bundle's; what the module imports from other files in there counts as its own.

    Raises:
        WorkflowLoadError: one is not as it must be, or two have the same name.
    """
    if code_hash is None:
        code_hash = hash_of(module)
    found: dict[int, WorkflowDefinition] = {}
    for entry in list(vars(module).values()):
        is_class = isinstance(entry, type) and issubclass(entry, WorkflowEntrypoint)
        if not is_class and not (inspect.isfunction(entry) and hasattr(entry, MARK)):
            continue
        if not _is_of(entry, module, folder) or (
            is_class and entry.run is WorkflowEntrypoint.run  # a base of others
        ):
            continue
        definition = definition_of(entry, code_hash)
        found[id(entry)] = definition
    check_names(found.values())
    return list(found.values())


def check_names(definitions: Iterable[WorkflowDefinition]) -> None:
    """Refuse two workflows of one name (`WorkflowLoadError`); the same one twice is one."""
    found: dict[str, WorkflowDefinition] = {}
    for definition in definitions:
        other = found.setdefault(definition.name, definition)
        if other.entry is not definition.entry:
            raise _unfit(
                definition.entry,
                f"has the name {definition.name!r}, as {other.class_name} has. Give it another: "
                f"`name = 'other'` in the class, or `@workflow(name='other')`",
            )


def check_has_run(module: ModuleType) -> None:
    """Of a module that defines no workflow: refuse classes that were meant to be one.

    Raises:
        WorkflowLoadError: one has no `run`.
    """
    for entry in list(vars(module).values()):
        if (
            isinstance(entry, type)
            and issubclass(entry, WorkflowEntrypoint)
            and entry.__module__ == module.__name__
            and entry.run is WorkflowEntrypoint.run
        ):
            definition_of(entry)


def _is_of(entry: Any, module: ModuleType, folder: Path | None) -> bool:
    if entry.__module__ == module.__name__:
        return True
    file = getattr(sys.modules.get(entry.__module__), "__file__", None)
    return folder is not None and file is not None and Path(file).is_relative_to(folder)


def load_file(path: str | Path, package: str = "") -> ModuleType:
    """Import a file as a module, afresh.

    Args:
        path: the file.
        package: it is the `__init__.py` of the package of that name; empty: it is no package's,
            and the module gets a name of its own.

    Raises:
        WorkflowLoadError: there is no such file, or importing it failed.
    """
    file = Path(path)
    made = f"toque_app_{file.stem}_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]}"
    name = package or made
    if package and package in sys.modules:
        raise WorkflowLoadError(f"the package {package!r} has a name that is taken; rename it.")
    inside = [str(file.parent)] if package else None
    spec = None
    if file.suffix == ".py":
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
    if spec is None or spec.loader is None or not file.is_file():
        raise WorkflowLoadError(f"{file} is no Python file.", {"file": str(file)})
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickling and type hints look modules up there
    _importing.append(str(file))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, ProgramRunsAtImport) or _runs_a_loop(error):
            raise runs_at_import(file) from error
        line = _line_of(error, file)
        at = f"{file}, line {line}" if line else str(file)
        raise WorkflowLoadError(
            f"{at}: {kind_of(error)}: {text_of(error)}",
            {"file": str(file), "line": line, "cause": kind_of(error)},
        ) from error
    finally:
        _importing.pop()
    return module


_importing: list[str] = []
"""Files that `load_file` is importing."""


def refuse_at_import() -> None:
    """Refuse to run a program while a file is being imported, in any thread.

    Raises:
        ProgramRunsAtImport
    """
    if _importing:
        raise runs_at_import(Path(_importing[-1]))


def runs_at_import(file: Path) -> ProgramRunsAtImport:
    """The error of a file that runs its program when it is imported."""
    return ProgramRunsAtImport(
        f"{file} runs its program when it is imported, and processes of workers import it. Put it "
        'under `if __name__ == "__main__":`. Wrong: `asyncio.run(main())` at the end of the file. '
        'Right: `if __name__ == "__main__": asyncio.run(main())`.',
        {"file": str(file)},
    )


def _runs_a_loop(error: BaseException) -> bool:
    """Whether asyncio refused to run a loop in the loop that imports the file."""
    trace = error.__traceback__
    last = ""
    while trace is not None:
        last = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
    return isinstance(error, RuntimeError) and last in ("asyncio.runners", "asyncio.base_events")


def is_loading(frame: FrameType | None) -> bool:
    """Whether that frame, or one that it was called from, imports a file for `load_file`."""
    while frame is not None:
        if frame.f_code is load_file.__code__:
            return True
        frame = frame.f_back
    return False


def hash_of(module: ModuleType | None) -> str:
    """Hash of the bundle that the module's file is; of its name if it has none (a shell)."""
    path = getattr(module, "__file__", None)
    try:
        if path:
            return hash_of_files({Path(path).name: Path(path).read_bytes()})
    except OSError:
        pass  # as if it had none
    return hashlib.sha256((module.__name__ if module is not None else "").encode()).hexdigest()


def _line_of(error: BaseException, file: Path) -> int:
    """The line of `file` that an error came from; 0: none is known."""
    whole = file.resolve()

    def is_it(name: str | None) -> bool:
        return name is not None and Path(name).resolve() == whole

    if isinstance(error, SyntaxError) and is_it(error.filename):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 0 for frame in reversed(frames) if is_it(frame.filename)), 0)


def _check_run(run: Callable[..., Any], parameters: tuple[str, ...], what: str) -> None:
    right = f"Right: `async def {getattr(run, '__name__', 'run')}({', '.join(parameters)}): ...`"
    if not inspect.iscoroutinefunction(run):
        raise WorkflowLoadError(f"{what} must be an `async def`. {right}")
    taken = inspect.signature(run).parameters.values()
    by_position = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(by_position) != len(parameters) and not any(p.kind is p.VAR_POSITIONAL for p in taken):
        raise WorkflowLoadError(f"{what} must take {', '.join(parameters)}. {right}")


def _payload_type(run: Callable[..., Any]) -> Any:
    """`T` of an annotation `WorkflowEvent[T]` of the event parameter; else `Any`."""
    parameters = [p for p in inspect.signature(run).parameters.values() if p.name != "self"]
    annotation = resolved(parameters[0].annotation, run) if parameters else Any
    if get_origin(annotation) is not WorkflowEvent:
        return Any
    return usable_type(get_args(annotation)[0], run)


def _check_placement(entry: Any, placement: Any, options: Any) -> None:
    if placement not in (SHARD, ACTOR):
        raise _unfit(entry, f"has placement {shown(placement)}; it must be {SHARD!r} or {ACTOR!r}")
    if options and placement != ACTOR:
        raise _unfit(
            entry,
            "has ray_options but no process of its own to give them to. Right: "
            'placement = "actor" beside it, or ray_options on a step',
        )
    try:
        check_ray_options(options, "ray_options")
    except InvalidArgument as error:
        raise _unfit(entry, f"can't be placed: {error}".rstrip(".")) from None


def _steps_max(entry: Any, limits: Any) -> int:
    steps = STEPS_PER_INSTANCE_DEFAULT
    if isinstance(limits, Mapping) and limits.keys() <= {"steps"}:
        steps = limits.get("steps", steps)
    elif limits is not None:
        steps = 0
    if type(steps) is not int or not 0 < steps <= STEPS_PER_INSTANCE_MAX:
        raise _unfit(
            entry,
            f"has limits {shown(limits)}; the one that there is is `steps`, from 1 to "
            f"{STEPS_PER_INSTANCE_MAX}. Right: {{'steps': {STEPS_PER_INSTANCE_DEFAULT}}}",
        )
    return steps


def _unfit(entry: Any, why: str) -> WorkflowLoadError:
    name = getattr(entry, "__qualname__", repr(entry))
    return WorkflowLoadError(f"{name} {why.rstrip('.')}.", {"class_name": name})
