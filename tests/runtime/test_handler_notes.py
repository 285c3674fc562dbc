"""Notes on whose handler runs: what they hold in each step, and what is read of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from toque.runtime.handler_notes import (
    ALARM,
    CALL,
    MESSAGE,
    HandlerNotes,
    Handling,
    handler_notes_path,
    read_handling,
)
from toque.runtime.ids import EntityRef

ONE = EntityRef("Bell", "a key with spaces")
OTHER = EntityRef("Engine", "e")


def test_a_handler_is_noted_while_it_runs_and_its_kind_is_a_users(tmp_path: Path) -> None:
    path = handler_notes_path(tmp_path, "d0")
    notes = HandlerNotes(path, ["Bell"])
    assert notes.blamed is None
    seen = [notes.run(trigger, ONE, read_handling, path) for trigger in (ALARM, CALL, MESSAGE)]
    assert seen == [Handling(trigger, ONE) for trigger in (ALARM, CALL, MESSAGE)]
    assert notes.run(CALL, OTHER, read_handling, path) is None
    assert read_handling(path) is None


async def test_a_coroutine_is_noted_in_each_step_and_not_while_it_waits(tmp_path: Path) -> None:
    path = handler_notes_path(tmp_path, "d0")
    notes = HandlerNotes(path, ["Bell"])
    gate = asyncio.get_running_loop().create_future()
    seen = []

    async def handler() -> str:
        seen.append(read_handling(path))
        await gate
        seen.append(read_handling(path))
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append(read_handling(path))
        return "done"

    task = asyncio.ensure_future(notes.run(MESSAGE, ONE, handler))
    await asyncio.sleep(0)
    assert read_handling(path) is None
    gate.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "done"
    assert seen == [Handling(MESSAGE, ONE)] * 3
    assert read_handling(path) is None


def test_what_ran_when_the_process_ended_is_blamed_once(tmp_path: Path) -> None:
    path = handler_notes_path(tmp_path, "d0")
    tag = HandlerNotes(path, ["Bell"]).tag(ALARM, ONE)
    assert tag is not None
    HandlerNotes(path, ["Bell"]).enter(tag)  # and never leaves
    after = HandlerNotes(path, ["Bell"])
    assert after.blamed == Handling(ALARM, ONE)
    assert after.is_blamed(ALARM, ONE)
    assert not after.is_blamed(MESSAGE, ONE)
    assert HandlerNotes(path, ["Bell"]).blamed is None
    after.close()
    assert not Path(path).exists()
