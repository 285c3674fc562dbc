"""Who asks for the whole of a long journal gets it as it stands, and holds up nobody meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.flows import Event, Step
from tests.engines.rig import KEY, Rig, on_virtual_time, rigged, view_of
from toque.engines.views import EventPage
from toque.engines.workflow import workflow
from toque.runtime import limits
from toque.runtime.ids import EntityRef

pytestmark = pytest.mark.loop(factory=on_virtual_time)
STEPS = 60
SLICE = 5

Ask = Callable[[Rig], Awaitable[Any]]
ASKED: dict[str, Ask] = {
    "view": lambda rig: rig.call("view", True, False),
    "newest first": lambda rig: rig.call("view", True, True),
    "waiting": lambda rig: rig.call("waiting"),
    "events": lambda rig: rig.call("events", 0, 500, [], 0),
    "later events": lambda rig: rig.call("events", 90, 20, ["step_completed"], 0),
    "output": lambda rig: rig.call("step_output", "s-7", "step", 0),
}


@workflow(name="long")
async def long(event: Event, step: Step) -> int:
    for n in range(STEPS):
        await step.do("s", lambda n=n: n)
    await step.wait_for_event("go", "go", timeout=50_000)
    for n in range(STEPS):
        await step.do("t", lambda n=n: n)
    return STEPS


class Turns:
    """Counts the turns of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count = 0
        self._loop = loop
        self._next = loop.call_soon(self._tick)

    def _tick(self) -> None:
        self.count += 1
        self._next = self._loop.call_soon(self._tick)

    def stop(self) -> int:
        self._next.cancel()
        return self.count


async def turns_of(rig: Rig, ask: Ask) -> tuple[int, Any]:
    turns = Turns(rig.loop)
    answer = await ask(rig)
    return turns.stop(), answer


def engine(rig: Rig) -> Any:
    return rig.host.peek(EntityRef("Engine", KEY))


def forget_log(rig: Rig) -> None:
    if engine(rig) is not None:
        engine(rig)._rows.log = None


@pytest.mark.parametrize("is_evicted", [False, True])
async def test_others_have_their_turns_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_evicted: bool
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(long)
        await rig.status("waiting")
        assert (engine(rig)._run is None) is False
        known = {name: await turns_of(rig, ask) for name, ask in ASKED.items()}
        monkeypatch.setattr(limits, "RECORDS_READ_PER_TURN_MAX", SLICE)
        if is_evicted:
            rig.restart("kept")
            await rig.pass_time(0.1)
        for name, ask in ASKED.items():
            forget_log(rig)
            turns, answer = await turns_of(rig, ask)
            before, expected = known[name]
            if name == "waiting":
                expected["in_memory"] = not is_evicted
            assert answer == expected, name
            if is_evicted or name not in ("waiting", "output"):  # these cost little in memory
                assert turns >= before + STEPS // SLICE, name


@pytest.mark.parametrize("is_evicted", [False, True])
@pytest.mark.parametrize("then", ["goes on", "restarts", "is deleted"])
async def test_what_happens_while_history_is_read_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_evicted: bool, then: str
) -> None:
    monkeypatch.setattr(limits, "RECORDS_READ_PER_TURN_MAX", SLICE)
    async with rigged(tmp_path) as rig:
        await rig.create(long)
        await rig.status("waiting")
        if is_evicted:
            rig.restart("kept")
            await rig.pass_time(0.1)
        forget_log(rig)
        readers = [asyncio.ensure_future(followed(rig)) for _ in range(3)]
        for _ in range(9):
            await asyncio.sleep(0)
        assert not any(reader.done() for reader in readers)
        if then == "is deleted":
            await rig.call("delete", "r2")
            for told in await asyncio.gather(*readers, return_exceptions=True):
                assert type(told).__name__ in ("InstanceNotFound", "EntityReset"), told
            return
        if then == "restarts":
            await rig.call("restart", "r2", "", 1, "do")
            await rig.status("waiting")
        await rig.call("send_event", "go", b"1", "e1")
        await rig.ended()
        told = await asyncio.gather(*readers)
        forget_log(rig)
        page = msgspec.convert(await rig.call("events", 0, 500, [], 0), EventPage)
        whole = [event.no for event in page.events]
        assert page.ended
        for numbers in told:
            assert numbers == sorted(set(numbers))
            # history holds nothing of the run before a restart, but who read it has seen it
            assert [n for n in numbers if n >= whole[0]] == whole
            assert then == "restarts" or numbers == whole


async def followed(rig: Rig) -> list[int]:
    """Numbers of all events as they come."""
    cursor, numbers = 0, []
    while True:
        raw = await rig.call("events", cursor, 7, [], 5_000)
        page = msgspec.convert(raw, EventPage)
        numbers += [event.no for event in page.events]
        cursor = page.cursor
        if page.ended:
            return numbers


async def test_a_view_of_what_is_restarted_meanwhile_is_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECORDS_READ_PER_TURN_MAX", SLICE)
    async with rigged(tmp_path) as rig:
        await rig.create(long)
        await rig.status("waiting")
        rig.restart("kept")
        await rig.pass_time(0.1)
        reading = rig.call("view", True, False)
        for _ in range(9):
            await asyncio.sleep(0)
        assert not reading.done()
        await rig.call("restart", "r2", "", 1, "do")
        view = view_of(await reading)
        again = await rig.view()
        assert view.run_id == again.run_id
        assert len(view.steps) < STEPS, "not those of the run before"


@pytest.mark.parametrize("is_evicted", [False, True])
@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_part_of_the_steps_is_that_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_evicted: bool, has_ended: bool
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(long)
        await rig.status("waiting")
        if has_ended:
            await rig.call("terminate", "r2", False, "api")
        for size in (
            limits.RECORDS_READ_PER_TURN_MAX,
            SLICE,
        ):  # as a short journal, and as a long one
            monkeypatch.setattr(limits, "RECORDS_READ_PER_TURN_MAX", size)
            if is_evicted:
                rig.restart("kept")
                await rig.pass_time(0.1)
            for newest_first in (False, True):
                whole = view_of(await rig.call("view", True, newest_first)).steps
                assert len(whole) == STEPS + 1 + has_ended
                for most in (1, 2, SLICE + 1, STEPS + 1, 1_000):
                    part = view_of(await rig.call("view", True, newest_first, most)).steps
                    assert part == whole[:most], (size, newest_first, most)


async def test_the_newest_steps_of_what_is_in_memory_are_given_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(long)
        await rig.status("waiting")
        monkeypatch.setattr(limits, "RECORDS_READ_PER_TURN_MAX", SLICE)
        some, _ = await turns_of(rig, lambda rig: rig.call("view", True, True, SLICE))
        whole, _ = await turns_of(rig, lambda rig: rig.call("view", True, True))
        assert whole >= some + STEPS // SLICE
