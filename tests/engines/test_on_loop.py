"""Bodies that never begin leave no coroutine behind of which Python would warn."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
from pathlib import Path
from typing import Any

import pytest

from toque.engines.code_host import InProcessCodeHost
from toque.engines.on_loop import Lazy
from toque.engines.run_port import NOBODY
from toque.runtime.notes import Notes, read_notes


async def body() -> int:
    return 1


def late() -> Any:
    return body()


def host_of(loop: asyncio.AbstractEventLoop, folder: Path, kind: str) -> InProcessCodeHost:
    """A host; one that has the loop to itself sees to all its tasks."""
    if kind == "bare":
        return InProcessCodeHost(loop, inline=True)
    notes = Notes(folder / "notes")
    return InProcessCodeHost(loop, notes=notes, owns_loop=kind == "owner")


def never_awaited(loop: asyncio.AbstractEventLoop) -> list[str]:
    """What Python warns of when the loop and all on it is gone."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.close()
        gc.collect()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("kind", ["bare", "noted", "owner"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("is_run", [True, False])
def test_a_body_that_is_cancelled_or_dropped_before_its_first_step(
    tmp_path: Path, kind: str, is_async: bool, is_run: bool
) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "destroyed but it is pending"
    host = host_of(loop, tmp_path, kind)
    told: list[Any] = []
    begun = host.run_body(
        body if is_async else late,
        {},
        is_async,
        contextvars.Context(),
        lambda error, value: told.append(error),
        NOBODY,
    )
    if is_run:
        begun.cancel()
        while not told:
            loop.run_until_complete(asyncio.sleep(0))
        assert isinstance(told[0], asyncio.CancelledError)
    host.close()
    del begun
    assert never_awaited(loop) == []


def test_a_task_of_a_body_that_is_cancelled_before_its_first_step(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    host = host_of(loop, tmp_path, "owner")
    told: list[Any] = []

    async def starts() -> bool:
        task = asyncio.create_task(body())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    who = NOBODY._replace(tag=Notes.tag("me"))
    host.run_body(starts, {}, True, contextvars.Context(), lambda *end: told.append(end), who)
    while not told:
        loop.run_until_complete(asyncio.sleep(0))
    host.close()
    assert told == [(None, True)]
    assert never_awaited(loop) == []


def test_a_lazy_coroutine_is_one_to_asyncio(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    seen = []

    async def works() -> str:
        seen.append([one.key for one in read_notes(tmp_path / "notes")])
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append([one.key for one in read_notes(tmp_path / "notes")])
            return "cleaned up"
        return "never"

    async def main() -> str:
        task: asyncio.Task[str] = asyncio.get_running_loop().create_task(
            Lazy(works, notes, Notes.tag("me"))  # type: ignore[arg-type]
        )
        await asyncio.sleep(0)
        assert read_notes(tmp_path / "notes") == []
        assert "works" in str(task.get_stack())
        task.cancel()
        return await task

    assert asyncio.run(main()) == "cleaned up"
    assert seen == [["me"], ["me"]]


def test_what_is_closed_does_not_begin() -> None:
    unused = body()
    lazy = Lazy(body, unused=unused)
    lazy.close()
    with pytest.raises(RuntimeError, match="can't begin"):
        lazy.send(None)
    with pytest.raises(RuntimeError, match=r"already awaited|cannot reuse"):
        unused.send(None)
