"""A process's claim on a data directory: lock, leftovers, runtime directory, keeper.

What a former run on the directory left behind is ended before anything is started; the lock
shows whether that run's starter still lives. The keeper (see keeper) is started before Ray, so
that a starter killed at any moment leaves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from ..runtime import limits
from ..runtime.errors import ClusterStartFailed, DataDirInUse
from ..runtime.frames_socket import runtime_directory
from . import keeper, topology
from .keeper import Process

_ROOT_PROGRAMS = ("gcs_server", "raylet")
_IDLE_TITLE = "ray::IDLE"
_SHARD_TITLE = "ray::ShardActor"
_WORKER_PROGRAM = "default_worker.py"
"""The program of a worker that has not given itself a title yet."""


class LocalRun:
    """This process's claim on a data directory, and its keeper.

    Raises:
        DataDirInUse: another live process has the directory.
    """

    def __init__(self, data_dir: str) -> None:
        self.data_dir = data_dir
        self.run_file = os.path.join(data_dir, "run.json")
        self._lock = os.open(os.path.join(data_dir, "run.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            run = keeper.read_run(self.run_file)
            who = f"process {keeper.starter_of(run).pid}" if run else "another process"
            raise DataDirInUse(
                f"{data_dir} is in use by {who}. Stop it first, or choose another directory."
            ) from None
        self.leftovers = keeper.end_run(self.run_file)
        self.run_dir = runtime_directory(topology.directory_id(data_dir))
        for name in os.listdir(self.run_dir):
            _remove(os.path.join(self.run_dir, name))
        me = keeper.identify(os.getpid())
        assert me is not None
        self.starter: Process = me
        self._start_keeper()

    def _start_keeper(self) -> None:
        reading, self._pipe = os.pipe()
        self._keeper = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", keeper.__file__, self.run_file),
                *(str(self.starter.pid), str(self.starter.started), self.run_dir, str(reading)),
            ],
            pass_fds=(reading,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C on the terminal is not for it
        )
        os.close(reading)
        assert self._keeper.stdout is not None
        with self._keeper.stdout as output:
            if output.readline() != b"ready\n":
                raise ClusterStartFailed("the keeper process did not start.")

    def cluster_roots(self) -> list[Process]:
        """The Ray processes that this process started and that Ray cannot do without."""
        found = []
        for pid in keeper.children(os.getpid()):
            command = keeper.command(pid)
            program = os.path.basename(command.partition("\0")[0])
            process = keeper.identify(pid)
            if process is not None and self.run_dir in command and program in _ROOT_PROGRAMS:
                found.append(process)
        return found

    def idle_workers(self) -> list[Process]:
        """Ray's workers that run nothing, are just starting, or are shards' actors."""
        return [
            process
            for process, command in self._workers()
            if command.startswith((_IDLE_TITLE, _SHARD_TITLE)) or _WORKER_PROGRAM in command
        ]

    def has_idle_worker(self) -> bool:
        """Whether a worker of Ray's runs nothing."""
        return any(command.startswith(_IDLE_TITLE) for _, command in self._workers())

    def _workers(self) -> Iterator[tuple[Process, str]]:
        roots = self.cluster_roots()
        for process in keeper.offspring(root.pid for root in roots) - set(roots):
            yield process, keeper.command(process.pid)

    def end_processes(self) -> None:
        """End the cluster's processes that are left."""
        run = keeper.read_run(self.run_file) or {}
        mine = [Process(*pair) for pair in run.get("processes", ())]
        keeper.end({*mine, *keeper.offspring(p.pid for p in self.cluster_roots())})

    def close(self) -> None:
        """Let the keeper end the stragglers and clean up; give the directory free."""
        os.close(self._pipe)
        try:
            self._keeper.wait(2 * limits.PROCESS_END_MAX_MS / 1000)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
            keeper.end_run(self.run_file)
        os.close(self._lock)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
