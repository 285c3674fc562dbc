"""The guards of conftest.py themselves: each must be seen to bite.

They are run here against a failing case by hand, since a guard that never fails proves nothing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load_conftest() -> ModuleType:
    """A second copy of conftest as a plain module."""
    path = Path(__file__).with_name("conftest.py")
    spec = importlib.util.spec_from_file_location("conftest_copy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


conftest = load_conftest()


async def test_coroutines_run_on_a_loop() -> None:
    assert asyncio.get_running_loop().is_running()


class OwnLoop(asyncio.SelectorEventLoop):
    """A loop that can be told from asyncio's default."""


@pytest.mark.loop(factory=OwnLoop)
async def test_a_marker_picks_the_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), OwnLoop)


def test_a_failing_coroutine_fails() -> None:
    async def fails() -> None:
        raise LookupError("seeded")

    with pytest.raises(LookupError, match="seeded"):
        conftest.run_coroutine_test(fails, {}, None)


def test_an_error_in_a_callback_fails_the_test() -> None:
    async def fails_aside() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="nobody retrieved"):
        conftest.run_coroutine_test(fails_aside, {}, None)


def test_ray_does_not_start_without_the_marker() -> None:
    ray = ModuleType("ray")
    ray.init = lambda: "started"  # type: ignore[attr-defined]
    conftest.RayGuard.wrap(ray)
    with pytest.raises(RuntimeError, match="not marked"):
        ray.init()
    conftest.RayGuard.allowed = True
    assert ray.init() == "started"


def test_a_child_left_behind_is_found_and_killed() -> None:
    before = conftest.child_processes()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = conftest.left_behind(before, wait_ms=1)
    child.communicate()
    assert len(told) == 1
    assert told[0].startswith(f"{child.pid}: ")
    assert conftest.left_behind(before, wait_ms=1) == []
