"""One owner: of many that claim a shard one may commit, and one that was stopped may not any more.

Real processes on one file, stopped by SIGSTOP at chosen points and told to go on by SIGCONT.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.claimer import ROWS_PER_CLAIM
from tests.recovery.ledger import Ledger, effects
from toque.runtime import fault_points
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import Fenced, OutcomeUnknown, StoreFailed, ToqueError
from toque.runtime.ids import EntityRef, Placement
from toque.runtime.link_socket import SocketLinks
from toque.runtime.rpc import Router

ROOT = Path(__file__).parents[2]
LEFT = EntityRef(Ledger.KIND, "left")
CLAIMERS, CLAIMS = 16, 8
BUSY_MS = 300


class Owner:
    """A process of `tests.recovery.owner`, and a way to call it."""

    def __init__(self, folder: Path, token: bytes, address: str, fault: str = "") -> None:
        variables = {**os.environ, **({fault_points.VARIABLE: fault} if fault else {})}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.recovery.owner", f"{folder}/d0.sqlite", "d0"),
                *(address, token.hex(), str(BUSY_MS)),
            ],
            stdout=subprocess.PIPE, env=variables, cwd=ROOT, text=True,
        )  # fmt: skip
        self._address = address
        self._token = token
        self._router: Router | None = None

    def next(self, what: str) -> dict[str, Any]:
        """The next line of that kind; those between are skipped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told: dict[str, Any] = json.loads(line)
            if told["what"] == what:
                return told
        raise AssertionError(f"the owner ended before it said {what!r}")

    def call(self, method: str, *args: Any) -> asyncio.Future[Any]:
        """Call the ledger; repeats nothing."""
        if self._router is None:
            loop = asyncio.get_running_loop()
            links = SocketLinks(lambda _: self._address, self._token, loop, SystemEntropy())
            self._router = Router(Placement(1, 1), links, loop)
        return self._router.call(LEFT, method, *args)

    def stop(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        self.wait_stopped()

    def wait_stopped(self) -> None:
        """Wait until it has stopped."""
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    async def let_go(self) -> None:
        """Close the links."""
        if self._router is not None:
            self._router.close()
            await asyncio.sleep(0)

    def end(self) -> None:
        """Kill it if it runs."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Owners:
    """Makes owners of one shard, and ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = secrets.token_bytes(32)
        self._ending = ExitStack()

    def new(self, name: str, fault: str = "") -> Owner:
        """One more process; it has not opened the shard yet."""
        owner = Owner(self._folder, self._token, f"unix:{self._folder}/{name}.sock", fault)
        self._ending.callback(owner.end)
        return owner

    def end(self) -> None:
        """End all."""
        self._ending.close()


@pytest.fixture
def owners() -> Iterator[Owners]:
    with tempfile.TemporaryDirectory(prefix="tq") as folder:  # short: sockets lie in it
        made = Owners(Path(folder))
        yield made
        made.end()


async def told(call: asyncio.Future[Any]) -> str:
    """The code of the error that a call ends with."""
    with pytest.raises(ToqueError) as raised:
        await asyncio.wait_for(call, 30)
    return raised.value.code


async def test_an_owner_that_was_stopped_and_followed_commits_and_answers_nothing(
    owners: Owners,
) -> None:
    first = owners.new("first")
    assert first.next("open")["epoch"] == 1
    await first.call("add", 0)
    first.stop()
    writing, reading = first.call("add", 1), first.call("read")
    await asyncio.sleep(0)  # both are in its socket now
    second = owners.new("second")
    assert second.next("open")["epoch"] == 2
    await second.call("add", 2)
    assert not writing.done()
    first.go_on()
    assert {await told(writing), await told(reading)} <= {Fenced.code, OutcomeUnknown.code}
    assert (await asyncio.to_thread(first.next, "broken"))["error"] == Fenced.code
    await second.call("add", 3)
    total, _rung = await second.call("read")
    assert effects(total) == {0: 1, 2: 1, 3: 1}
    for owner in (first, second):
        await owner.let_go()


async def test_an_owner_that_stops_within_a_commit_keeps_others_out_until_it_goes_on_or_dies(
    owners: Owners,
) -> None:
    first = owners.new("first", "commit.written:2:stop")
    first.next("open")
    await first.call("add", 0)
    writing = first.call("add", 1)
    await asyncio.to_thread(first.wait_stopped)
    second = owners.new("second")
    assert (await asyncio.to_thread(second.next, "failed"))["error"] == StoreFailed.code
    assert not writing.done()
    first.go_on()
    assert effects(await writing) == {0: 1, 1: 1}  # it was still the owner
    assert (await asyncio.to_thread(second.next, "open"))["epoch"] == 2
    assert effects((await second.call("read"))[0]) == {0: 1, 1: 1}
    await first.let_go()
    third = owners.new("third", "commit.written:2:stop")
    await asyncio.to_thread(third.next, "open")
    await third.call("add", 2)
    writing = third.call("add", 3)
    await asyncio.to_thread(third.wait_stopped)
    fourth = owners.new("fourth")
    assert (await asyncio.to_thread(fourth.next, "failed"))["error"] == StoreFailed.code
    third.process.kill()
    assert await told(writing) == OutcomeUnknown.code
    await asyncio.to_thread(fourth.next, "open")
    found = effects((await fourth.call("read"))[0])
    assert found in ({0: 1, 1: 1, 2: 1}, {0: 1, 1: 1, 2: 1, 3: 1})
    for owner in (second, third, fourth):
        await owner.let_go()


def test_of_sixteen_processes_that_claim_a_shard_one_at_a_time_commits(tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    command = [sys.executable, "-m", "tests.recovery.claimer", str(path)]
    claimers = [
        subprocess.Popen(
            [*command, f"p{number}", str(CLAIMS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(CLAIMERS)
    ]
    claims: list[dict[str, Any]] = []
    try:
        for one in claimers:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in claimers:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        for one in claimers:
            out, _ = one.communicate(timeout=120)
            claims += json.loads(out)
    finally:
        for one in claimers:
            one.kill()
            one.communicate()
    epochs = [claim["epoch"] for claim in claims]
    assert sorted(epochs) == list(range(1, CLAIMERS * CLAIMS + 1)), "an epoch was given twice"
    ends = {claim["end"] for claim in claims}
    assert ends == {"done", "fenced"}, "nobody was fenced, or somebody met another error"
    with closing(sqlite3.connect(path)) as connection:
        stored = connection.execute("SELECT epoch, n FROM rows ORDER BY rowid").fetchall()
    by_claim = {claim["epoch"]: claim["stored"] for claim in claims}
    expected = [(epoch, n) for epoch in sorted(by_claim) for n in range(by_claim[epoch])]
    assert stored == expected  # nothing but what was acknowledged, one owner after the other
    assert all(c["stored"] == ROWS_PER_CLAIM for c in claims if c["end"] == "done")
