"""Instances in worker processes: the same results, and a worker's death is an interruption."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines.worker_app import Apart, Ending, Heavy, Held, Poison, Streaming, Where
from toque.actors import keeper
from toque.actors.worker import WorkerSpec
from toque.api.wiring import Runtime, embedded
from toque.engines import worker_messages as say
from toque.engines.broken_code import BrokenCode
from toque.engines.worker_host import WorkerHost, WorkerSettings
from toque.engines.worker_slots import WorkerSlots
from toque.runtime import limits
from toque.runtime.clock import SystemClock
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import WorkflowLoadError
from toque.runtime.link_socket import SocketLinks


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[Runtime]:
    async with embedded(
        folder / "data", [Apart, Ending, Heavy, Held, Poison, Streaming, Where], **options
    ) as runtime:
        yield runtime


async def test_an_instance_runs_in_a_process_of_its_own_and_holds_none_while_it_waits(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as runtime:
        client = runtime.client()
        apart = await client.create_instance("Apart", params=1)
        where = await client.run_instance("Where")
        assert where.output == [os.getpid(), os.getpid()]
        await apart.send_event("word", "hello")
        await apart.send_event("word", "world")
        status = await apart.wait()
        assert status.error is None
        first, last = status.output["pids"]
        assert os.getpid() not in (first, last)
        assert first != last  # it slept in between, and gave its process up
        assert last == status.output["run"]
        assert status.output["both"] == [1, 1]
        assert status.output["words"] == ["hello", "world"]


class Unborn:
    """A launcher, and the worker that it starts: no process, only the link of one."""

    listen = "unix"
    resources = ""
    process = None

    def __init__(self) -> None:
        self.spec: asyncio.Future[WorkerSpec] = asyncio.get_running_loop().create_future()

    async def launch(self, spec: WorkerSpec, options: Any, ended: Any) -> Unborn:
        self.spec.set_result(spec)
        return self

    def kill(self) -> None: ...

    async def end(self) -> None: ...


async def test_what_was_said_before_a_worker_was_ready_comes_before_what_was_said_after(
    tmp_path: Path,
) -> None:
    loop, launcher = asyncio.get_running_loop(), Unborn()
    settings = WorkerSettings(
        "d0", str(tmp_path), str(tmp_path), launcher, loop, SystemClock(), SystemEntropy(),
        WorkerSlots(1, 0),
    )  # fmt: skip
    host = WorkerHost(
        settings, "w1", {}, {}, account=None, codecs=("", None), is_dedicated=True,
        code=("", ""), broken=BrokenCode(), ended=lambda _: None,
    )  # fmt: skip
    heard: asyncio.Queue[Any] = asyncio.Queue()
    up: asyncio.Queue[int] = asyncio.Queue()
    host.put(say.Go(1))  # nobody is there
    spec = await launcher.spec
    links = SocketLinks(lambda _: spec.address, spec.token, loop, SystemEntropy())
    link = links.open("w1", heard.put_nowait, up.put_nowait, lambda _: None)
    await asyncio.wait_for(up.get(), 10)
    while not host._is_linked:
        await asyncio.sleep(0)
    host.put(say.Go(2))  # it is there, and has not said so
    await asyncio.sleep(0)
    link.send(say.frame_of([say.encoded(say.Ready(say.VERSION, 1, None))]))
    told: list[Any] = []
    while len(told) < 3:
        told += say.to_worker.decode(await asyncio.wait_for(heard.get(), 10))
    assert told[:2] == [say.Go(1), say.Go(2)]
    link.close()
    host.end("the test is over")
    assert host.closing is not None
    await host.closing


@pytest.mark.parametrize("how", ["thread", "async", "inner", "loop", "run"])
async def test_code_that_ends_or_blocks_its_process_is_interrupted_and_tried_again(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WORKER_SILENCE_MAX_MS", 1_600)
    async with running(tmp_path, account="mine") as runtime:
        await runtime.deploy("other", None)
        other = runtime.client("other")
        poison = await other.create_instance("Poison", params=[how, str(tmp_path), 2])
        pids = set()
        for _ in range(3):  # the others of the account go on beside it
            # one that is in the worker when that ends goes on in the next
            where = await other.run_instance("Where", timeout=20)
            pids |= set(where.output)
        status = await poison.wait(30)
        assert status.error is None
        where = await other.run_instance("Where", timeout=20)
        assert len(set(where.output)) == 1
        pids |= set(where.output)
        began = (tmp_path / "began").read_text().split()
        assert len(began) == 3
        assert len(set(began)) == 3
        assert str(status.output) not in {str(pid) for pid in pids}
        assert os.getpid() not in pids
        if how != "run":
            attempts = (await poison.status()).steps[0].attempts
            told = [each.error.message for each in attempts if each.error]
            why = "event loop was blocked" if how == "loop" else "process of the instance is gone"
            assert [why in each for each in told] == [True, True]
            assert ["make it a plain `def`" in each for each in told] == [how == "loop"] * 2


async def test_a_shard_that_stood_still_does_not_take_its_workers_for_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WORKER_SILENCE_MAX_MS", 1_600)
    async with running(tmp_path) as runtime:
        for name in ("began", "go"):
            os.mkfifo(tmp_path / name)
        held = await runtime.client().create_instance("Held", params=str(tmp_path))
        pid = int(await asyncio.to_thread((tmp_path / "began").read_text))
        threading.Event().wait(2.5)  # the loop too, as in a process that is stopped for a while
        await asyncio.to_thread((tmp_path / "go").write_text, "on")
        status = await held.wait(20)
        assert status.error is None
        assert status.output == pid
        step = (await held.status()).steps[0]
        assert [attempt.success for attempt in step.attempts] == [True]


async def test_a_killed_worker_interrupts_its_instance_and_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        client = runtime.client()
        for name in ("began", "go"):
            os.mkfifo(tmp_path / name)
        held = await client.create_instance("Held", params=str(tmp_path))
        pid = int(await asyncio.to_thread((tmp_path / "began").read_text))
        assert pid != os.getpid()
        descriptor = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(keeper.wait_ended, descriptor, 10_000)
        os.close(descriptor)
        where = await client.run_instance("Where")
        assert where.output == [os.getpid()] * 2
        await asyncio.to_thread((tmp_path / "go").write_text, "on")
        status = await held.wait(20)
        assert status.error is None
        assert status.output not in (pid, os.getpid())
        step = (await held.status()).steps[0]
        assert [attempt.success for attempt in step.attempts] == [False, True]
        assert step.attempts[0].error.name == "StepInterrupted"


async def test_what_kills_its_process_for_ever_fails_and_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, account="mine") as runtime:
        await runtime.deploy("other", None)
        other = runtime.client("other")
        names = {}
        for how in ("async", "run"):
            folder = tmp_path / how
            folder.mkdir()
            names[how] = await other.create_instance("Poison", params=[how, str(folder), 1_000])
        ended = {how: await instance.wait(60) for how, instance in names.items()}
        assert ended["async"].error is not None
        assert ended["async"].error.name == "StepInterrupted"
        assert ended["run"].error is not None
        assert ended["run"].error.name == "InstanceCrashed"


@pytest.mark.parametrize("times", [2, 1_000])
async def test_a_run_that_ends_its_process_after_a_step_is_to_blame_and_the_step_is_not(
    tmp_path: Path, times: int
) -> None:
    """Its result is too large for the buffers of a socket, and it may be tried once only."""
    async with running(tmp_path) as runtime:
        ending = await runtime.client().create_instance("Ending", params=[str(tmp_path), times])
        status = await ending.wait(60)
        if times == 2:
            assert status.error is None
            assert status.output == 900_000
        else:
            assert status.error.name == "InstanceCrashed"
        deaths = len((tmp_path / "ends").read_text().split())
        assert deaths == (3 if times == 2 else limits.INSTANCE_DEATHS_MAX + 1)
        assert len((tmp_path / "bodies").read_text().split()) == 1
        step = (await ending.status()).steps[0]
        assert [attempt.success for attempt in step.attempts] == [True]


async def test_streams_are_written_and_read_in_a_process_of_their_own(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        streaming = await runtime.client().create_instance("Streaming")
        status = await streaming.wait(60)
        assert status.error is None
        (lines, pid), (again, _) = status.output
        assert (lines, again) == (100_000, 100_000)
        assert pid != os.getpid()
        content = b"".join([part async for part in streaming.stream("again-1")])
        assert content.count(b"\n") == 100_000


async def test_code_that_no_other_process_can_find_is_refused_at_the_start(
    tmp_path: Path,
) -> None:
    class Hidden(Where):
        placement = "actor"

    with pytest.raises(WorkflowLoadError, match="top level of a file"):
        async with embedded(tmp_path / "data", [Hidden]):
            pass


async def test_resources_that_nobody_can_give_are_named_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        heavy = await runtime.client().create_instance("Heavy", params={"folder": "x"})
        status = await heavy.wait(10)
        assert status.error is not None
        assert status.error.name == "ResourcesUnavailable"
        assert "step 'heavy-1' asks for num_cpus=1" in status.error.message
        assert (await heavy.status()).steps[1].attempts_total == 1


def victim(folder: Path, workflow: str, params: Any) -> subprocess.Popen[str]:
    """A process of `worker_victim`."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.engines.worker_victim"),
            *(str(folder), workflow, json.dumps(params)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("how", ["async", "run"])
def test_what_ended_the_whole_process_is_put_apart_at_the_next_start(
    tmp_path: Path, how: str
) -> None:
    first = victim(tmp_path, "Poison", [how, str(tmp_path), 2])
    assert first.communicate(timeout=30) == ("", None)
    assert first.returncode == 1
    second = victim(tmp_path, "Poison", [how, str(tmp_path), 2])
    told = json.loads(second.communicate(timeout=30)[0])
    assert second.returncode == 0
    began = [int(word) for word in (tmp_path / "began").read_text().split()]
    assert began[0] == first.pid
    assert second.pid not in began, "it has had its chance in a shared process"
    assert told["pid"] not in (told["output"], first.pid)
    on_loop = "while code of this instance was on its event loop"
    assert [on_loop in text for text in told["errors"]] == [True, False][: len(told["errors"])]
    assert len(told["errors"]) == (0 if how == "run" else 2)


def test_a_worker_ends_when_its_shard_is_killed(tmp_path: Path) -> None:
    for name in ("began", "go"):
        os.mkfifo(tmp_path / name)
    process = victim(tmp_path, "Held", str(tmp_path))
    worker = int((tmp_path / "began").read_text())
    descriptor = os.pidfd_open(worker)
    process.kill()
    process.communicate()
    assert keeper.wait_ended(descriptor, 10_000)
    os.close(descriptor)


async def test_accounts_share_no_interpreter(tmp_path: Path) -> None:
    async with running(tmp_path, account="mine") as runtime:
        for account in ("a", "b"):
            await runtime.deploy(account, None)
        places = {}
        for account in ("mine", "a", "b", "a"):
            where = await runtime.client(account).run_instance("Where", timeout=20)
            assert len(set(where.output)) == 1
            places.setdefault(account, set()).update(where.output)
        assert places["mine"] == {os.getpid()}
        assert [len(pids) for pids in places.values()] == [1, 1, 1], "a's code has one worker"
        assert len(set.union(*places.values())) == 3
        held = {}
        for account in ("a", "b"):
            folder = tmp_path / account
            folder.mkdir()
            for name in ("began", "go"):
                os.mkfifo(folder / name)
            held[account] = await runtime.client(account).create_instance(
                "Held", params=str(folder)
            )
            pid = int(await asyncio.to_thread((folder / "began").read_text))
            assert pid not in set.union(*places.values()), "each asked for a process of its own"
        statistics = (await runtime.client("mine").statistics())["d0"]
        assert statistics["workers_dedicated"] == 2
        for instance in held.values():
            await instance.terminate()


SCRIPT = """
import asyncio
import toque

@toque.workflow(placement="actor")
async def apart(event, step):
    return 1

async def main():
    async with toque.embedded({data!r}, [apart]) as runtime:
        status = await (await runtime.client().create_instance("apart")).wait(40)
        print(status.output, status.error)

{ending}
"""
GUARDED = "if __name__ == '__main__':\n    asyncio.run(main())"
IN_A_THREAD = """
from concurrent.futures import ThreadPoolExecutor
ThreadPoolExecutor(1).submit(asyncio.run, main()).result()
"""


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("asyncio.run(main())", "runs its program when it is imported"),
        (IN_A_THREAD, "runs its program when it is imported"),
        (GUARDED, "1 None"),
    ],
    ids=["bare", "thread", "guarded"],
)
def test_a_worker_never_runs_the_program_of_the_file_it_imports(
    tmp_path: Path, ending: str, told: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(data=str(tmp_path / "data"), ending=ending))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert told in done.stdout, done.stderr
    assert ("ProgramRunsAtImport" in done.stdout) == (ending != GUARDED)
