"""The parts of placement by themselves: threads of bodies, notes, options, and the protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engines.worker_app import Apart, Where
from toque.actors.resources_ray import ray_options
from toque.actors.worker import scrub_environment
from toque.engines import body_threads
from toque.engines import worker_messages as say
from toque.engines.body_threads import BodyThreads, Job
from toque.engines.broken_code import BrokenCode
from toque.engines.bundle import bundle_of_definitions, bundle_of_file, load_bundle
from toque.engines.code_host import InProcessCodeHost
from toque.engines.journal import DONE, Journal, Record
from toque.engines.ray_options import check_ray_options
from toque.engines.remote_run import RemoteRun
from toque.engines.run_port import Plan, Run, RunHooks, Turn, Who
from toque.engines.worker import Worker
from toque.engines.worker_host import WorkerHost, WorkerSettings
from toque.engines.worker_slots import WorkerSlots
from toque.engines.workflow import definition_of, workflow
from toque.runtime import notes
from toque.runtime.clock import SystemClock
from toque.runtime.codec import pack, unpack
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import InvalidArgument, WorkflowLoadError
from toque.runtime.notes import LOOP, Blame, Notes, read_notes

KEY = "acc/u1/i1"

# --- threads ------------------------------------------------------------------------------------


class Gate:
    """Jobs that are held until they are let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.names: list[str] = []

    def job(self, who: str = "i1 step") -> Job:
        def work(slot: int) -> None:
            self.names.append(threading.current_thread().name)
            self.begun.release()
            self.go.wait(10)

        return Job(who, work)

    def began(self) -> bool:
        return self.begun.acquire(timeout=5)


def test_a_thread_whose_body_was_given_up_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(body_threads, "BODY_THREADS_ABANDONED_MAX", 2)
    threads, hung, rest = BodyThreads(1), Gate(), Gate()
    for n in range(2):
        job = hung.job(f"i1 hang-{n}")
        threads.submit(job)
        assert hung.began()
        assert not threads.give_up(job), "it had begun"
    assert threads.hung() == {"i1 hang-0": 1, "i1 hang-1": 1}
    assert "hang-1" in caplog.text
    third = hung.job("i1 hang-2")
    threads.submit(third)
    assert hung.began()
    threads.give_up(third)
    waits = rest.job("i2 step")
    threads.submit(waits)
    assert not rest.begun.acquire(timeout=0.05), "no more than two are replaced"
    hung.go.set()
    assert rest.began()
    rest.go.set()
    assert rest.names[0].endswith("i2 step")
    assert threads._threads <= 1 + 2
    threads.close()


def test_a_body_that_has_not_begun_never_does() -> None:
    threads, gate = BodyThreads(1), Gate()
    threads.submit(gate.job())
    assert gate.began()
    late = gate.job("late")
    threads.submit(late)
    assert threads.give_up(late)
    gate.go.set()
    after = gate.job("after")
    threads.submit(after)
    assert gate.began()
    assert [name.rpartition(" ")[2] for name in gate.names] == ["step", "after"]
    threads.close()


# --- notes --------------------------------------------------------------------------------------


def test_notes_tell_who_was_running(tmp_path: Path) -> None:
    path = tmp_path / "n" / "d0"
    assert read_notes(path) == []
    made = Notes(path)
    made.enter(LOOP, Notes.tag("acc/u1/ä"))
    made.enter(3, Notes.tag("acc/u1/long"))
    made.enter(4, Notes.tag("gone"))
    made.leave(4)
    made.enter(notes._SLOTS, Notes.tag("no such slot"))
    assert read_notes(path) == [Blame("acc/u1/ä", True), Blame("acc/u1/long", False)]
    made.enter(3, Notes.tag("x"))
    made.leave(LOOP)
    assert read_notes(path) == [Blame("x", False)]
    made.close()
    assert read_notes(path) == []
    path.write_bytes(b"\xff\xff torn")
    assert read_notes(path) == []


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_body_is_noted_while_it_runs_and_not_while_it_waits(
    tmp_path: Path, is_async: bool
) -> None:
    loop = asyncio.get_running_loop()
    path = tmp_path / "notes"
    host = InProcessCodeHost(loop, notes=Notes(path))
    seen = []
    resume = loop.create_future()

    async def body() -> str:
        seen.append(read_notes(path))
        try:
            await resume
        except ValueError:
            seen.append(read_notes(path))
        return "done"

    done = loop.create_future()
    host.run_body(
        body if is_async else lambda: body(),
        {},
        is_async,
        copy_context(),
        lambda error, value: done.set_result((error, value)),
        Who(Notes.tag(KEY), KEY, "step-1"),
    )
    while not seen:
        await asyncio.sleep(0)
    assert read_notes(path) == []
    resume.set_exception(ValueError())
    assert await done == (None, "done")
    assert seen == [[Blame(KEY, True)]] * 2
    host.close()


# --- options and bundles ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ([], "give a dict"),
        ({"num_cpu": 1}, "unknown key 'num_cpu'"),
        ({"name": "mine"}, "unknown key 'name'"),
        ({"num_gpus": -1}, "at least 0"),
        ({"num_cpus": True}, "at least 0"),
        ({"memory": float("nan")}, "at least 0"),
        ({"resources": {"lens": "two"}}, r"\['resources'\]\['lens'\] is 'two'"),
        ({"resources": ["lens"]}, "dict by name"),
        ({"accelerator_type": 4}, "A100"),
        ({"runtime_env": {"pip": ["x"]}}, "env_vars only"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "strings"),
        ({"runtime_env": {"env_vars": {"A": "x\0y"}}}, "no NUL"),
        ({"runtime_env": {"env_vars": {"A=B": "x"}}}, "no '='"),
        ({"resources": {"GPU": 1}}, "give it as 'num_gpus'"),
        ({"num_cpus": 0.00001}, "the least is 0.0001"),
    ],
)
def test_options_are_checked_where_they_are_given(given: Any, what: str) -> None:
    with pytest.raises(InvalidArgument, match=what):
        check_ray_options(given, "ray_options")

    @workflow(name="w", placement="actor", ray_options=given)
    async def run(event: Any, step: Any) -> None: ...

    if given:
        with pytest.raises(WorkflowLoadError, match="ray_options"):
            definition_of(run)


class Refusing:
    """A launcher that can't make anything of the options."""

    listen, resources = "unix", ""

    async def launch(self, *_: Any) -> Any:
        raise ValueError("no such options")


async def test_a_worker_that_is_refused_is_lost_and_gives_its_slot_back(tmp_path: Path) -> None:
    loop, slots = asyncio.get_running_loop(), WorkerSlots(1, 0)
    settings = WorkerSettings(
        "d0",
        str(tmp_path),
        str(tmp_path),
        Refusing(),
        loop,
        SystemClock(),
        SystemEntropy(),
        slots,
    )
    lost = loop.create_future()
    hooks = RunHooks(
        lambda run, turn: None,
        lambda run, error: lost.set_result(str(error)),
        lambda seq: b"",
        lambda: 1,
    )
    for name in ("w1", "w2"):
        lost = loop.create_future()
        host = WorkerHost(
            settings,
            name,
            {},
            {},
            account=None,
            codecs=("acc", []),
            is_dedicated=True,
            code=("acc", "h"),
            broken=BrokenCode(),
            ended=lambda host: None,
        )
        host.open(Plan(KEY, True, "r", "w", "h", 1, 1, 1, b"null", [], []), hooks)
        assert "it did not start: no such options" in await asyncio.wait_for(lost, 10)
        assert host.closing is not None
        await host.closing
    await asyncio.wait_for(slots.acquire(""), 10)


def test_good_options_are_taken_as_they_are() -> None:
    given = {
        "num_cpus": 0.5,
        "num_gpus": 1,
        "memory": 10**9,
        "resources": {"lens": 1},
        "accelerator_type": "A100",
        "runtime_env": {"env_vars": {"A": "b"}},
    }
    assert check_ray_options(given, "ray_options") == given


def test_only_the_trusted_accounts_code_sees_the_servers_environment() -> None:
    servers = {"PATH": "/bin", "TOQUE_TOKEN": "x", "AWS_KEY": "y", "RAY_AUTH_MODE": "token"}
    asked = {"runtime_env": {"env_vars": {"LENS": "1", "AWS_KEY": "its own"}}}
    given = ray_options(asked, "acme")["runtime_env"]["env_vars"]
    seen = {**servers, **given}
    scrub_environment(seen)
    assert seen == {"PATH": "/bin", "RAY_AUTH_MODE": "token", **given}
    seen = {**servers, **ray_options(asked, None)["runtime_env"]["env_vars"]}
    scrub_environment(seen)
    assert seen == {**servers, "LENS": "1", "AWS_KEY": "its own"}


def test_a_wrong_placement_is_refused() -> None:
    @workflow(name="w", placement="moon")
    async def moon(event: Any, step: Any) -> None: ...

    @workflow(name="w", ray_options={"num_cpus": 1})
    async def nowhere(event: Any, step: Any) -> None: ...

    with pytest.raises(WorkflowLoadError, match="'moon'; it must be 'shard' or 'actor'"):
        definition_of(moon)
    with pytest.raises(WorkflowLoadError, match="no process of its own"):
        definition_of(nowhere)


def test_a_bundle_finds_the_same_code(tmp_path: Path) -> None:
    given = [definition_of(Apart), definition_of(Where)]
    found = load_bundle(bundle_of_definitions(given))
    assert [(d.name, d.code_hash, d.placement) for d in found] == (
        [(d.name, d.code_hash, d.placement) for d in given]
    )
    path = tmp_path / "app.py"
    path.write_text("import toque\n\n@toque.workflow\nasync def run(event, step): ...\n")
    assert [d.name for d in load_bundle(bundle_of_file(path))] == ["run"]
    path.write_text("raise SystemExit(3)")
    with pytest.raises(WorkflowLoadError, match="SystemExit"):
        load_bundle(bundle_of_file(path))


# --- the protocol -------------------------------------------------------------------------------


class Pair:
    """A run in a worker and its Engine's side, whose messages pass by hand, as encoded."""

    def __init__(self, definition: Any, records: list[Record], events: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        self.to_worker: list[bytes] = []
        self.turns: list[Turn] = []
        self.lost: list[Exception] = []
        self.is_dedicated = True
        host = InProcessCodeHost(loop, [definition], inline=True)
        self.worker = Worker(loop, host, SystemClock())
        self.worker.send = self.heard
        self.payloads = {seq: b"%d" % seq for seq in range(1, 100)}
        hooks = RunHooks(
            lambda run, turn: self.turns.append(turn),
            lambda run, error: self.lost.append(error),
            self.payloads.__getitem__,
            lambda: 2_000,
        )
        plan = Plan(
            KEY, True, "r1", definition.name, "h", 1_000, 1_000, 1_000, b"null", records, events
        )
        self.run: Run = RemoteRun(self, 1, plan, hooks)  # type: ignore[arg-type]

    def put(self, message: Any) -> None:
        self.to_worker.append(say.frame_of([say.encoded(message)]))

    def leave(self, run: RemoteRun) -> None:
        """Nobody counts."""

    def heard(self, frame: bytes) -> None:
        handlers: dict[type, Callable[[Any], None]] = {
            say.More: lambda m: self.run.more(),  # type: ignore[attr-defined]
            say.Part: lambda m: self.run.part(m.records),  # type: ignore[attr-defined]
            say.Ahead: lambda m: self.run.ahead(m.turn),  # type: ignore[attr-defined]
            say.Turned: lambda m: self.run.turned(m.acts, m.turn),  # type: ignore[attr-defined]
        }
        for message in say.to_shard.decode(frame):
            handlers[type(message)](message)

    async def pass_on(self) -> Turn:
        """All that has been said is heard; gives the newest turn."""
        while self.to_worker:
            while self.to_worker:
                self.worker.receive(self.to_worker.pop(0))
            for _ in range(5):
                await asyncio.sleep(0)
        return self.turns[-1]


@workflow(name="words")
async def words(event: Any, step: Any) -> Any:
    first = await step.do("first", lambda: 1)
    heard = [(await step.wait_for_event("w", "word")).payload for _ in range(20)]
    return [first, heard]


async def test_a_run_that_is_elsewhere_says_the_same_as_one_that_is_here() -> None:
    events = [(seq, "word", 900 + seq) for seq in range(1, 21)]
    pair = Pair(definition_of(words), [], events)
    assert pair.run.begin() is None
    turn = await pair.pass_on()
    assert turn.starts == [(1, 1)]
    assert turn.is_busy
    assert pair.run.records() is None
    journal = {record.ordinal: record for record in turn.records}
    pair.run.start(turn.starts)
    turn = await pair.pass_on()
    consumed = [seq for turn in pair.turns for seq in turn.consumed]
    assert consumed == list(range(1, 21)), "a few at a time, in order"
    assert all(turn.is_busy for turn in pair.turns if turn.outcome is None)
    assert turn.outcome is not None
    assert turn.outcome.output == b"[1,[%s]]" % b",".join(b"%d" % n for n in range(1, 21))
    for one in pair.turns:
        journal |= {record.ordinal: record for record in one.records}

    again = Pair(definition_of(words), list(journal.values()), [])
    again.run.begin()
    replayed = await again.pass_on()
    assert replayed.outcome == turn.outcome
    assert not replayed.records
    again.run.close()


async def test_a_turn_that_came_before_an_act_was_heard_is_busy() -> None:
    @workflow(name="waits")
    async def waits(event: Any, step: Any) -> Any:
        return (await step.wait_for_event("w", "word")).payload

    pair = Pair(definition_of(waits), [], [])
    pair.run.begin()
    turn = await pair.pass_on()
    assert not turn.is_busy
    assert turn.awaited == ("word",)
    pair.run.buffer_event(7, "word", 1_500)
    pair.run.act("tick", 1_500)
    late = Turn([], [], [], None, False, 1_900, ("word",), 1, "h")
    pair.run.turned(1, late)  # type: ignore[attr-defined]
    assert pair.turns[-1].is_busy, "what it heard since then is still to come"
    turn = await pair.pass_on()
    assert turn.outcome is not None
    assert turn.outcome.output == b"7"
    pair.run.close()
    await pair.pass_on()
    assert not pair.worker._hosted


def test_a_long_journal_travels_in_chunks() -> None:
    journal = Journal()
    for n in range(12):
        record = journal.new("do", f"x{n}", "x", 1)
        record.result = b"1" * 1_000_000
        record.end(2, DONE)
        journal.apply(record)
    sent: list[Any] = []

    class Host:
        is_dedicated = False

        def put(self, message: Any) -> None:
            sent.append(message)

    hooks = RunHooks(partial(print), partial(print), lambda seq: b"", lambda: 0)
    plan = Plan(KEY, False, "r", "w", "h", 1, 1, 1, b"null", journal.records[:], [])
    run = RemoteRun(Host(), 1, plan, hooks)  # type: ignore[arg-type]
    run.begin()
    while not isinstance(sent[-1], say.Go):
        run.more()
    chunks = [message for message in sent if isinstance(message, say.Records)]
    assert len(chunks) == 3
    assert max(len(say.encoded(chunk)) for chunk in chunks) < 5_000_000
    back = [unpack(raw, Record) for chunk in chunks for raw in chunk.records]
    assert [pack(record) for record in back] == [pack(record) for record in journal.records]
