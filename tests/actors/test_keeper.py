"""The keeper: it ends what it should, and never what merely has the same number."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toque.actors import keeper
from toque.actors.keeper import Process

WAIT_S = 10


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    made = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    yield made
    for process in made:
        process.kill()
        process.wait()


def identified(process: subprocess.Popen[bytes]) -> Process:
    found = keeper.identify(process.pid)
    assert found is not None
    return found


def test_a_process_is_known_by_number_and_start(sleepers: list[subprocess.Popen[bytes]]) -> None:
    found = identified(sleepers[0])
    assert keeper.is_alive(found)
    assert not keeper.is_alive(found._replace(started=found.started - 1))


def test_a_zombie_counts_as_ended(sleepers: list[subprocess.Popen[bytes]]) -> None:
    found = identified(sleepers[0])
    sleepers[0].kill()
    os.waitid(os.P_PID, found.pid, os.WEXITED | os.WNOWAIT)
    assert not keeper.is_alive(found)


def test_only_the_very_process_is_ended(sleepers: list[subprocess.Popen[bytes]]) -> None:
    mine, other = map(identified, sleepers)
    os.kill(mine.pid, signal.SIGSTOP)  # a stopped one too
    reused = other._replace(started=other.started - 1)
    assert keeper.end([mine, reused]) == [mine]
    assert sleepers[0].wait(WAIT_S) == -signal.SIGKILL
    assert keeper.is_alive(other)


def test_the_offspring_of_a_process_is_found(sleepers: list[subprocess.Popen[bytes]]) -> None:
    found = keeper.offspring([os.getpid()])
    assert {process.pid for process in found} >= {os.getpid(), *(p.pid for p in sleepers)}


def test_a_run_file_of_an_earlier_boot_names_nobody(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    path = str(tmp_path / "run.json")
    run = {"boot": "another", "starter": [1, 1], "processes": [list(identified(sleepers[0]))]}
    keeper.write_run(path, run)
    assert keeper.read_run(path) is None
    assert keeper.end_run(path) == []
    assert keeper.is_alive(identified(sleepers[0]))
    assert not os.path.exists(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_torn_run_file_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    assert keeper.read_run(str(path)) is None


def test_only_births_have_the_processes_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ["7", "7", "7", "7", "8", "8", "8"]
    monkeypatch.setattr(keeper, "newest", lambda: numbers.pop(0) if numbers else "8")
    births = keeper.Births()
    assert [births.are_there() for _ in range(7)] == [True, True, False, False, True, True, False]
    later = [births.are_there() for _ in range(keeper.WALK_ANYWAY_ROUNDS + 1)]
    assert sum(later) == 2, "once in a while without a birth"
    monkeypatch.setattr(keeper, "newest", lambda: "")
    assert all(births.are_there() for _ in range(30)), "where it is not told they always may"


def test_a_new_process_changes_what_is_told_of_the_newest() -> None:
    before = keeper.newest()
    subprocess.run(["true"], check=True)
    assert not before or keeper.newest() != before


STARTER = """
import os, subprocess, sys
# before the keeper: until it has become `sleep`, its command line is this program's, which
# names the scratch directory
other = subprocess.Popen(["sleep", "62"])
reading, writing = os.pipe()
keeper = subprocess.Popen(
    [sys.executable, "-I", "-S", sys.argv[1], sys.argv[2], str(os.getpid()),
     open("/proc/self/stat").read().rpartition(")")[2].split()[19], sys.argv[3], str(reading)],
    pass_fds=(reading,), stdout=subprocess.PIPE, start_new_session=True)
keeper.stdout.readline()
os.close(reading)
cluster = subprocess.Popen(["sh", "-c", "sleep 61 & wait", sys.argv[3] + "/ray"])
print(keeper.pid, cluster.pid, other.pid, flush=True)
sys.stdin.read()
if sys.argv[4] == "stop":
    os.close(writing)
    keeper.wait()
    other.kill()
"""


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_the_keeper_ends_the_clusters_processes_and_no_others(tmp_path: Path, way: str) -> None:
    run_file, scratch = tmp_path / "run.json", tmp_path / "scratch"
    scratch.mkdir()
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, keeper.__file__, str(run_file), str(scratch), way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    pids = [int(word) for word in starter.stdout.readline().split()]
    the_keeper, cluster, other = [keeper.identify(pid) for pid in pids]
    assert the_keeper is not None
    assert cluster is not None
    assert other is not None
    descriptor = os.pidfd_open(the_keeper.pid)
    while list(cluster) not in noted(run_file):
        os.sched_yield()
    while len(tree := keeper.offspring([cluster.pid])) < 2:  # the shell has yet to fork
        os.sched_yield()
    if way == "kill":
        starter.kill()
    starter.stdin.close()
    starter.wait(WAIT_S)
    starter.stdout.close()
    assert ended(descriptor)
    assert not any(map(keeper.is_alive, tree))
    assert not run_file.exists()
    assert not scratch.exists()
    if way == "kill":
        assert keeper.end([other]) == [other]


def noted(run_file: Path) -> list[list[int]]:
    run = keeper.read_run(str(run_file))
    return json.loads(json.dumps(run["processes"])) if run and "processes" in run else []


def ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    done = bool(poll.poll(WAIT_S * 1000))
    os.close(descriptor)
    return done
