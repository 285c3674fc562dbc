"""What holds for every test: how coroutines run, and three guards.

* `async def test_*` runs on a loop of its own (`asyncio.Runner`). A test, module or folder picks
  another loop with `pytest.mark.loop(factory=...)` or a fixture named `loop_factory`. An exception
  that nobody retrieved (a lost task, a failing callback) fails the test.
* `ray.init` raises unless the test is marked `cluster`, so that no unit test starts a cluster by
  accident. Ray is not imported for that: the guard is put on when something imports it.
* A test that leaves a child process behind fails, and the process is killed.

Hypothesis draws the same examples in each run; campaigns are for looking further.

Nothing here sleeps: a child's end is awaited on its process descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import select
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import settings

CHILD_EXIT_MS_MAX = 5_000
"""How long a child that is already ending may take."""

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of this file and put on the guard over Ray."""
    config.addinivalue_line("markers", "loop(factory=...): the event loop that async tests run on")
    RayGuard.install()
    # The same examples each time, and none fails for being slow on a busy machine.
    settings.register_profile("toque", deadline=None, derandomize=True, database=None)
    settings.load_profile("toque")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Ray run one after another, in one worker, when others run beside them."""
    for item in items:
        if item.get_closest_marker("cluster") is not None:
            item.add_marker(pytest.mark.xdist_group("ray"))


# --- coroutines ---


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end; leave all others to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    run_coroutine_test(pyfuncitem.obj, arguments, chosen_loop(pyfuncitem))
    return True


def chosen_loop(item: pytest.Function) -> LoopFactory | None:
    """The loop factory of a test: its fixture, else the closest marker, else asyncio's own."""
    factory: Any = item.funcargs.get("loop_factory")
    marker = item.get_closest_marker("loop")
    if factory is None and marker is not None:
        factory = marker.kwargs["factory"]
    return cast(LoopFactory | None, factory)


def run_coroutine_test(
    test: Callable[..., Any], arguments: dict[str, Any], loop_factory: LoopFactory | None
) -> None:
    """Run `test(**arguments)`; raise what it raises, or what its loop reported."""
    lost: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: lost.append(context))
        runner.run(test(**arguments))
    if lost:
        told = "; ".join(f"{item['message']}: {item.get('exception')!r}" for item in lost)
        raise AssertionError(f"the event loop met errors that nobody retrieved: {told}")


# --- Ray ---


class RayGuard(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `ray` like everyone else, then puts a check in front of its `init`."""

    allowed = False

    def __init__(self) -> None:
        self._inner: importlib.abc.Loader | None = None

    @classmethod
    def install(cls) -> None:
        """Guard `ray`, whether it is imported already or will be."""
        if "ray" in sys.modules:
            cls.wrap(sys.modules["ray"])
        elif not any(isinstance(finder, cls) for finder in sys.meta_path):
            sys.meta_path.insert(0, cls())

    @classmethod
    def wrap(cls, ray: ModuleType) -> None:
        """Make `ray.init` refuse while it is not allowed."""
        start = ray.init

        def init(*args: Any, **options: Any) -> Any:
            if not cls.allowed:
                raise RuntimeError("ray.init in a test that is not marked `cluster`")
            return start(*args, **options)

        ray.init = init  # type: ignore[attr-defined]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "ray":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        self._inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self._inner is not None
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._inner is not None
        self._inner.exec_module(module)
        self.wrap(module)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let `ray.init` through for tests marked `cluster`, their fixtures included."""
    RayGuard.allowed = item.get_closest_marker("cluster") is not None
    try:
        return (yield)
    finally:
        RayGuard.allowed = False


# --- child processes ---


def child_processes() -> set[int]:
    """The process ids of this process's children, of all its threads."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(int(word) for word in task.read_text().split())
    return found


def described(pid: int) -> str | None:
    """The command line of a live process; None if it ended (a zombie counts as ended)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return None if state == "Z" else b" ".join(words).decode(errors="replace").strip()


def has_ended(pid: int, wait_ms: int) -> bool:
    """Whether a process ends within `wait_ms`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(wait_ms))
    finally:
        os.close(descriptor)


def left_behind(before: set[int], wait_ms: int = CHILD_EXIT_MS_MAX) -> list[str]:
    """Kill the children that are alive and were not in `before`; tell what they were."""
    told = []
    for pid in sorted(child_processes() - before):
        command = described(pid)
        if command is None or "multiprocessing.resource_tracker" in command:
            continue
        if not has_ended(pid, wait_ms):
            os.kill(pid, signal.SIGKILL)
            has_ended(pid, CHILD_EXIT_MS_MAX)
            told.append(f"{pid}: {command}")
    return told


@pytest.fixture(autouse=True)
def no_child_left_behind() -> Iterator[None]:
    """Fail a test that leaves a child process running."""
    before = child_processes()
    yield
    told = left_behind(before)
    if told:
        pytest.fail("the test left processes behind: " + "; ".join(told))
