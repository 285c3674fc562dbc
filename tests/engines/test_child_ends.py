"""Children and their parents' ends, restarts, crashes and late messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.engines.family import PREFIX, Index, child_that, children, parent
from tests.engines.flows import Event, Step
from tests.engines.rig import KEY, Rig, on_virtual_time, rigged, view_of
from toque.engines.engine import Engine
from toque.engines.failures import ChildFailed, EventsBufferFull
from toque.engines.journal import CHILDREN
from toque.engines.workflow import workflow
from toque.runtime import limits
from toque.runtime.codec import decode_json, encode_json
from toque.runtime.ids import EntityRef
from toque.runtime.payload_codec import missing

pytestmark = pytest.mark.loop(factory=on_virtual_time)


# --- the parent's end -----------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["cancel", "terminate", "abandon"])
@pytest.mark.parametrize("end", ["returns", "fails", "terminate", "cancel", "delete", "restart"])
async def test_a_run_that_is_over_ends_its_children_as_it_said(
    tmp_path: Path, policy: str, end: str
) -> None:
    async def run(event: Event, step: Step) -> Any:
        started = await step.do("once", lambda: 1)
        await step.start_child("index", Index, {"wait": True}, id="kid", on_parent_end=policy)
        if end == "fails":
            raise ValueError("x")
        if end != "returns":
            await step.wait_for_event("go", "go")
        return started

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        await rig.until(lambda view: bool(children(rig)))
        if end not in ("returns", "fails"):
            await rig.status("waiting", PREFIX + "kid")
            await rig.call(end, "r", *(("", 0, "") if end == "restart" else ()))
        if policy == "abandon":
            await rig.pass_time(120)
            view = await rig.view(PREFIX + "kid")
            assert view.status == "waiting"
            return
        view = await rig.status("terminated", PREFIX + "kid")
        name = view.error.name if view.error else ""
        assert name == ("Cancelled" if policy == "cancel" else "")
        trigger = (await rig.view(PREFIX + "kid")).steps[-1]
        assert (trigger.type, trigger.source) == ("termination", "parent")


async def test_continuing_as_new_ends_the_children_of_the_run(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        if not event.payload:
            await step.start_child("index", Index, {"wait": True}, id="kid")
            step.continue_as_new(1)
        await step.sleep("a while", 60)
        return "second"

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        assert await rig.run(parent(run)) == "second"
        assert (await rig.view(PREFIX + "kid")).status == "terminated"
        assert not rig.rows("children")


@pytest.mark.parametrize("end", ["terminate", "delete"])
async def test_a_child_that_is_being_made_when_its_parent_ends_is_no_orphan(
    tmp_path: Path, end: str
) -> None:
    async def run(event: Event, step: Step) -> Any:
        await step.run_child("index", Index, {"wait": True}, id="kid")

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        late = rig.births = asyncio.Event()
        front_end = rig.host.local(EntityRef("Engine", KEY)).env.children
        calls: list[Any] = []
        start = front_end.start

        async def noted(*args: Any) -> Any:
            calls.append(args)
            return await start(*args)

        front_end.start = noted
        await rig.create(parent(run))
        await rig.until(lambda view: bool(calls))
        await rig.call(end, "r")
        late.set()
        await start(*calls[0])  # the request was on its way
        assert (await rig.status("terminated", PREFIX + "kid")).error is not None


async def test_a_child_that_run_gives_up_is_let_go(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        try:
            async with asyncio.timeout(5):
                await step.run_child("index", Index, {"wait": True}, id="kid")
        except TimeoutError:
            await step.sleep("a while", 60)
        child = await step.start_child("index", Index, {"wait": True}, id="other")
        try:
            async with asyncio.timeout(5):
                await child.result()
        except TimeoutError:
            await step.sleep("a while", 60)
        await step.wait_for_event("go", "go")

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        await rig.until(lambda view: any(s.name == "go-1" for s in view.steps))
        assert (await rig.view(PREFIX + "kid")).status == "terminated"
        assert (await rig.view(PREFIX + "other")).status == "waiting"  # its handle may be used yet


# --- pauses and restarts --------------------------------------------------------------------


async def test_a_child_that_ends_while_its_parent_is_paused_is_heard_after_it(
    tmp_path: Path,
) -> None:
    async def run(event: Event, step: Step) -> Any:
        return (await step.run_child("index", Index, {"nap": 10})).number

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        await child_that(rig, "waiting")
        await rig.do("pause", "p")
        await child_that(rig, "complete")
        await rig.pass_time(60)
        assert (await rig.view()).status == "paused"
        await rig.do("resume", "r")
        assert decode_json((await rig.ended()).output or b"") == 1


@pytest.mark.parametrize("nap", [0, 3_600])
@pytest.mark.parametrize("from_step", ["between", "after"])
async def test_a_restart_from_a_step_keeps_a_child_that_was_started_before(
    tmp_path: Path, nap: int, from_step: str
) -> None:
    began = Counter[str]()

    async def run(event: Event, step: Step) -> Any:
        child = await step.start_child("index", Index, {"nap": nap})
        await step.do("between", lambda: began.update(["between"]))
        number = (await child.result()).number
        await step.do("after", lambda: began.update(["after"]))
        await step.wait_for_event("go", "go")
        return number

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        wanted = "go-1" if nap == 0 or from_step == "after" else "between-1"
        await rig.until(lambda view: any(s.name == wanted for s in view.steps))
        await rig.status("waiting")
        await rig.do("restart", "r", from_step, 1, "do")
        await rig.until(lambda view: any(s.name == "go-1" for s in view.steps))
        await rig.call("send_event", "go", b"1", "e")
        assert decode_json((await rig.ended()).output or b"") == 1
        assert len(children(rig)) == 1
        assert began[from_step] == 2


async def test_a_restart_from_the_start_makes_another_child(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        return (await step.run_child("index", Index)).number

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.run(parent(run))
        await rig.do("restart", "r", "", 0, "")
        await rig.status("complete")
        assert len(children(rig)) == 2


async def test_a_child_that_was_restarted_after_its_end_is_its_own(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        await step.run_child("index", Index, id="kid")
        await step.wait_for_event("go", "go")

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        await rig.until(lambda view: any(s.name == "go-1" for s in view.steps))
        await rig.do("restart", "r", "", 0, "", key=PREFIX + "kid")
        await rig.do("terminate", "t")
        assert (await rig.ended(PREFIX + "kid")).status == "complete"


# --- crashes and late messages --------------------------------------------------------------


class _Family:
    """A parent with children of all sorts, and how often bodies began."""

    def __init__(self) -> None:
        self.began = Counter[str]()

    def entry(self) -> Any:
        """The parent's workflow."""

        @workflow(name="parent")
        async def run(event: Event, step: Step) -> Any:
            return await self.run(step)

        return run

    async def run(self, step: Step) -> Any:
        first = await step.start_child("first", "leaf", "a")
        second = await step.run_child("second", "leaf", "b")
        left = await step.start_child("left", "leaf", "c", on_parent_end="abandon")
        await step.start_child("idle", "endless", id="idle")
        await step.do("mine", lambda: self.began.update(["mine"]))
        try:
            await step.run_child("bad", "leaf", "bad")
        except ChildFailed as error:
            bad = error.data["status"]
        return [await first.result(), second, left.workflow, bad]

    def define(self, rig: Rig) -> None:
        began = self.began

        @workflow(name="leaf")
        async def leaf(event: Event, step: Step) -> Any:
            def body() -> str:
                began.update([event.payload])
                return str(event.payload)

            if event.payload == "a":
                await step.sleep("nap", 1)
            got = await step.do("leaf", body)
            if got == "bad":
                raise ValueError(got)
            return got

        @workflow(name="endless")
        async def endless(event: Event, step: Step) -> Any:
            await step.sleep("long", 300 * 86_400)

        rig.define(leaf)
        rig.define(endless)


async def _play(
    folder: Path, crash: tuple[int, Literal["lost", "kept"]] | None
) -> tuple[Any, int, list[str], Counter[str]]:
    async with rigged(folder) as rig:
        family = _Family()
        family.define(rig)
        await rig.create(family.entry())
        before = rig.commits
        if crash is not None:
            rig.crash_at = before + crash[0], crash[1]
        view = await rig.ended()
        commits = rig.commits - before
        await rig.status("terminated", PREFIX + "idle")
        for key in children(rig):
            await rig.ended(key)
        kept = [row[0] for row in rig.rows("children")]
        assert not kept, kept
        assert not rig.rows("outbox")
        return view.output, commits, children(rig), family.began


@pytest.mark.parametrize("outcome", ["lost", "kept"])
async def test_whatever_commit_the_process_dies_at_children_are_made_and_heard_once(
    tmp_path: Path, outcome: Any
) -> None:
    (tmp_path / "calm").mkdir()
    output, commits, keys, _ = await _play(tmp_path / "calm", None)
    assert decode_json(output) == ["a", "b", "leaf", "errored"]
    assert len(keys) == 5
    first = 1 if outcome == "lost" else 2  # every other commit each: what is on disk is the same
    for commit in range(first, commits + 1, 2):
        folder = tmp_path / str(commit)
        folder.mkdir()
        got, _, made, began = await _play(folder, (commit, outcome))
        assert got == output, commit
        assert len(made) == 5, (commit, made)
        assert max(began.values()) <= 2, (commit, began)


async def test_late_copies_of_what_relatives_told_do_nothing(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        child = await step.start_child("index", Index, {"nap": 5}, id="kid")
        await child.result()
        await step.wait_for_event("go", "go")
        return "done"

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        kid = PREFIX + "kid"
        view = await child_that(rig, "complete")
        assert view.parent is not None
        call = view.parent.call
        await rig.until(lambda view: any(s.name == "go-1" for s in view.steps))
        before = rig.rows("instances")
        for _ in range(2):
            await rig.call("child_made", call, kid, "abandon")
            await rig.call("child_ended", call, b"")
            await rig.call("parent_ended", KEY, call, key=kid)
            await rig.call("parent_ended", "acc/u1/other", call, key=kid)
            await rig.call("child_ended", "other.1", b"")
        assert rig.rows("instances") == before
        await rig.do("restart", "r", "", 0, "", key=kid)
        await rig.call("child_made", call, kid, "cancel")  # late: it hears that it is not wanted
        assert (await rig.ended(kid)).status == "complete"
        await rig.call("send_event", "go", b"1", "e")
        assert decode_json((await rig.ended()).output or b"") == "done"


async def test_a_stranger_can_not_end_a_child(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        return (await step.run_child("index", Index, {"nap": 60}, id="kid")).number

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        view = await child_that(rig, "waiting")
        assert view.parent is not None
        await rig.call("parent_ended", "acc/u1/other", view.parent.call, key=PREFIX + "kid")
        await rig.call("parent_ended", KEY, "other.1", key=PREFIX + "kid")
        assert decode_json((await rig.ended()).output or b"") == 1


async def test_a_child_that_is_kept_for_no_time_goes_once_its_parent_has_heard(
    tmp_path: Path,
) -> None:
    async def run(event: Event, step: Step) -> Any:
        return (await step.run_child("index", Index, id="kid")).number

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        create = rig.create_call

        def short(workflow: Any, params: Any = None, **fields: Any) -> Any:
            if "parent" in fields:
                fields["retention"] = (0, 0)
            return create(workflow, params, **fields)

        rig.create_call = short  # type: ignore[method-assign]
        assert await rig.run(parent(run)) == 1
        while children(rig):
            await rig.pass_time(1)
        assert view_of(await rig.call("view", True, False)).status == "complete"
        assert len(rig.asked) == 1


def test_the_bounds_fit_each_other() -> None:
    assert 2 * limits.CHILDREN_PER_INSTANCE_MAX < limits.BATCH_ROWS_RESERVED
    assert limits.CHILDREN_PER_INSTANCE_MAX < limits.OUTBOX_ROWS_PER_ENTITY_MAX


async def test_a_store_from_before_there_were_children_opens_and_its_instances_have_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(event: Event, step: Step) -> Any:
        await step.wait_for_event("go", "go")
        return (await step.run_child("index", Index)).number

    monkeypatch.setattr(Engine, "TABLES", tuple(t for t in Engine.TABLES if t is not CHILDREN))
    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        await rig.status("waiting")
        monkeypatch.undo()
        rig.restart("kept")
        await rig.call("send_event", "go", b"1", "e")
        assert decode_json((await rig.ended()).output or b"") == 1


async def test_ends_that_nobody_waits_for_leave_room_for_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(event: Event, step: Step) -> Any:
        for _ in range(3):
            await step.start_child("index", Index, on_parent_end="abandon")
        return (await step.wait_for_event("go", "go")).payload

    monkeypatch.setattr(limits, "EVENTS_BUFFERED_MAX", 2)
    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        await rig.status("waiting")
        for key in children(rig):
            await rig.status("complete", key)
        await rig.pass_time(5)
        assert len(rig.rows("events")) == 3
        for _ in range(2):
            await rig.call("send_event", "early", encode_json(1), "")
        with pytest.raises(EventsBufferFull, match="has 2 events"):
            await rig.call("send_event", "early", encode_json(1), "")


async def test_an_end_that_can_not_be_read_yet_is_told_again(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        return (await step.run_child("index", Index, {"nap": 5})).number

    class Unread:
        """A shard that does not know the codec of the child's shard, once."""

        writes = False
        refusals = 0

        def __init__(self, seal: Any) -> None:
            self.close, self._open = seal.close, seal.open

        def open(self, kept: bytes) -> bytes:
            if not self.refusals:
                self.refusals += 1
                raise missing("acc", "new-key")
            return bytes(self._open(kept))

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        await rig.status("waiting")
        rows = rig.host.local(EntityRef("Engine", KEY))._rows
        rows.seal = seal = Unread(rows.seal)
        await rig.pass_time(20)
        view = await rig.view()
        assert (view.status, view.output, seal.refusals) == ("complete", b"1", 1)
