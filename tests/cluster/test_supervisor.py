"""The supervisor's patience, with actors that never answer; Ray itself is not needed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toque.actors import keeper
from toque.actors.claims import Claim, read_claim, take_over, this_machine, write_claim
from toque.actors.cluster_ray import Cluster, told_by_ray
from toque.actors.keeper import Process
from toque.actors.supervisor_ray import Event, Supervisor
from toque.actors.topology import process_environment
from toque.runtime import limits
from toque.runtime.errors import ClusterStartFailed
from toque.runtime.handler_notes import CALL, HandlerNotes, handler_notes_path
from toque.runtime.ids import EntityRef
from toque.runtime.notes import LOOP, Notes, notes_path

WAIT_S = 20.0
NODE = "n1"


class MuteActor:
    """Every call of `health` waits for ever."""

    def __init__(self) -> None:
        self.health = SimpleNamespace(remote=lambda: SimpleNamespace(future=self._future))

    def _future(self) -> concurrent.futures.Future[Any]:
        return concurrent.futures.Future()


class Mute:
    """A cluster of one shard, `d0`, that gives no sign of life."""

    def __init__(self, run_dir: Path, idle: list[Process] | None = None) -> None:
        self.specs = {"d0": SimpleNamespace(run_dir=str(run_dir), data_dir=str(run_dir))}
        self.handles = {"d0": MuteActor()}
        self.node = NODE
        self.roots: list[Process] = []
        self.run = None if idle is None else SimpleNamespace(idle_workers=lambda: idle)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that does nothing, until it is ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def known(process: subprocess.Popen[bytes]) -> Process:
    found = keeper.identify(process.pid)
    assert found is not None
    return found


async def ended_by(cluster: Any, process: subprocess.Popen[bytes]) -> Event:
    """The first event of a supervisor that ends the process."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    supervisor = Supervisor(cluster, events.put_nowait, period_ms=20, start_max_ms=200)
    # Its former process was well, and is gone: that is all that is known.
    supervisor.health["d0"] = {"node": NODE, "process": (2**22 + 1, 1), "state": "open"}
    supervisor._down.add("d0")
    watching = asyncio.create_task(supervisor._watch("d0"))
    event = await asyncio.wait_for(events.get(), WAIT_S)
    await asyncio.to_thread(process.wait, WAIT_S)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return event


async def test_a_successor_that_hangs_at_its_start_is_ended(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    write_claim(str(tmp_path), "d0", Claim(known(process), NODE))
    event = await ended_by(Mute(tmp_path), process)
    assert (event.shard, event.what) == ("d0", "silent")
    assert process.returncode == -9


async def test_a_process_that_hangs_before_it_could_tell_its_number_is_ended(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    assert (await ended_by(Mute(tmp_path, [known(process)]), process)).what == "silent"


async def test_a_new_process_has_a_new_patience(tmp_path: Path) -> None:
    supervisor = Supervisor(Mute(tmp_path), start_max_ms=1_000)  # type: ignore[arg-type]
    supervisor._quiet_since["d0"] = supervisor._loop.time() - 5
    assert supervisor._patience_left("d0") <= 0
    write_claim(str(tmp_path), "d0", Claim(Process(1, 1), NODE))
    assert supervisor._patience_left("d0") > 0


async def test_while_the_supervisor_itself_stood_still_nobody_was_silent(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    write_claim(str(tmp_path), "d0", Claim(known(process), NODE))
    cluster: Any = Mute(tmp_path)
    answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
    asked = asyncio.Event()

    def ask() -> Any:
        asked.set()
        return SimpleNamespace(future=lambda: answer)

    cluster.handles["d0"].health = SimpleNamespace(remote=ask)
    told: list[Event] = []
    supervisor = Supervisor(cluster, told.append, period_ms=20, silence_max_ms=800)
    well = {"node": NODE, "state": "open", "final": False, "epoch": 1, "tick_age_ms": 0}
    supervisor.health["d0"] = well = {**well, "process": tuple(known(process))}
    checking = asyncio.create_task(supervisor._check("d0"))
    await asyncio.wait_for(asked.wait(), WAIT_S)
    threading.Event().wait(1.5)  # as in a process that is stopped for a while
    asyncio.get_running_loop().call_later(0.1, answer.set_result, well)
    assert await checking
    assert not told
    assert process.poll() is None


async def test_who_blocks_is_named_though_the_health_thread_is_silent_too(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    write_claim(str(tmp_path), "d0", Claim(known(process), NODE))
    Notes(notes_path(tmp_path, "d0")).enter(LOOP, Notes.tag("acc/u1/culprit"))
    event = await ended_by(Mute(tmp_path), process)
    assert event.what == "silent"
    assert "the code of instance acc/u1/culprit is on it" in event.reason


async def test_an_entity_that_blocks_is_named_too(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    write_claim(str(tmp_path), "d0", Claim(known(process), NODE))
    notes = HandlerNotes(handler_notes_path(tmp_path, "d0"), ["Bell"])
    notes.enter(notes.tag(CALL, EntityRef("Bell", "b1")) or b"")
    event = await ended_by(Mute(tmp_path), process)
    assert "the code of entity Bell(b1) is on it" in event.reason


async def test_a_process_that_was_replaced_between_two_calls_was_down(tmp_path: Path) -> None:
    cluster: Any = Mute(tmp_path)
    told: list[Event] = []
    supervisor = Supervisor(cluster, told.append)
    well = {"node": NODE, "state": "open", "final": False, "epoch": 1, "tick_age_ms": 0}
    for pid in (1, 1, 2):
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        answer.set_result({**well, "process": (pid, 1)})
        cluster.handles["d0"]._future = lambda answer=answer: answer
        assert await supervisor._check("d0")
    assert [event.what for event in told] == ["down", "back"]


async def test_the_process_of_another_node_is_nobodys_business_here(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    write_claim(str(tmp_path), "d0", Claim(known(process), "n2"))
    supervisor = Supervisor(Mute(tmp_path))  # type: ignore[arg-type]
    assert supervisor._suspects("d0") == []


def test_a_claim_that_is_torn_or_missing_names_nobody(tmp_path: Path) -> None:
    assert read_claim(str(tmp_path), "d0") is None
    write_claim(str(tmp_path), "d0", Claim(Process(7, 8), NODE))
    assert read_claim(str(tmp_path), "d0") == Claim(Process(7, 8), NODE)
    there = Claim(Process(7, 8), NODE, this_machine())
    write_claim(str(tmp_path), "d0", there)
    assert read_claim(str(tmp_path), "d0") == there
    (tmp_path / "d0.process").write_text("[7, 8")
    assert read_claim(str(tmp_path), "d0") is None
    write_claim(str(tmp_path / "gone"), "d0", Claim(Process(7, 8), NODE))  # no folder: no matter


def test_a_former_process_that_is_still_there_is_ended_by_its_successor(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    me, machine = known(process)._replace(pid=os.getpid()), this_machine()
    os.kill(process.pid, signal.SIGSTOP)  # as on a node that hangs
    for elsewhere in ("", "another machine"):  # its number means another process here
        write_claim(str(tmp_path), "d0", Claim(known(process), NODE, elsewhere))
        assert not take_over(str(tmp_path), "d0", Claim(me, "n2", machine))
        assert keeper.is_alive(known(process))
    write_claim(str(tmp_path), "d0", Claim(known(process), NODE, machine))
    assert take_over(str(tmp_path), "d0", Claim(me, "n2", machine))
    assert process.wait(WAIT_S) == -9
    assert read_claim(str(tmp_path), "d0") == Claim(me, "n2", machine)
    assert not take_over(str(tmp_path), "d0", Claim(me, "n2", machine))


def test_of_what_ray_tells_only_the_sentence_is_logged() -> None:
    told = told_by_ray(
        " Raylet is terminated. Last 20 lines of the Raylet logs:\n"
        "    [state-dump] \tNodeManager.deadline_timer - 1 total\n"
    )
    assert told == "Raylet is terminated. Last 20 lines of the Raylet logs:"
    assert told_by_ray("    [state-dump] NodeManager: 1") == ""
    assert len(told_by_ray("x" * 10_000)) < 1_000


async def test_ray_that_exits_does_not_end_who_asked() -> None:
    def gives_up() -> None:
        raise SystemExit(1)

    with ThreadPoolExecutor(1) as thread:
        cluster = Cluster([], None, thread)
        with pytest.raises(ClusterStartFailed, match="gave up"):
            await cluster.blocking(gives_up)


def test_ray_does_not_end_its_driver_when_the_gcs_is_gone_for_a_while() -> None:
    day_s = limits.DAY_MS / 1000
    assert int(process_environment()["RAY_gcs_rpc_server_reconnect_timeout_s"]) > day_s
