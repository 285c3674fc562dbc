"""The server that a campaign works on: a process of its own, to be killed in part or whole."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.recovery import flow
from toque.actors import keeper
from toque.actors.keeper import Process
from toque.api.client import Client
from toque.api.client_http import connect

ROOT = Path(__file__).parents[2]
LIMIT = 50
READY_S = 60.0


class Server:
    """The process under test and its tree.

    Args:
        data: its data directory.
        log: where deaths of its processes are noted.
        data_shards: how many data shards a new directory gets.
        limit: how many instances may run.
        more: further arguments of `serve`.
        environment: further variables of all its processes.
    """

    def __init__(
        self,
        data: Path,
        log: Path,
        data_shards: int,
        limit: int = LIMIT,
        more: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.log = log
        self.data_shards = data_shards
        self._limit = limit
        self._more = list(more)
        self._environment = {**os.environ, **(environment or {})}
        self.token = secrets.token_hex(16)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port: int = found.getsockname()[1]
        self.events: list[dict[str, Any]] = []
        self.noise = data.with_name("noise")
        self._process: subprocess.Popen[str]
        self._reader: threading.Thread
        self._watched: set[Process] = set()
        self.start()

    def start(self) -> None:
        """Start it and wait until it serves."""
        arguments = [
            str(self.data), str(self.port), self.token, str(self._limit), str(self.data_shards),
            *self._more,
        ]  # fmt: skip
        with self.noise.open("a") as noise:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.recovery.serve", *arguments],
                stdout=subprocess.PIPE,
                stderr=noise,
                text=True,
                cwd=ROOT,
                env=self._environment,
            )
        told = threading.Event()
        self._ready = False
        self._reader = threading.Thread(target=self._read, args=(self._process, told))
        self._reader.start()
        if not told.wait(READY_S) or not self._ready:
            self.kill_tree()
            raise RuntimeError(f"the server did not start: {self.noise.read_text()[-2000:]}")

    def _read(self, process: subprocess.Popen[str], told: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            self.events.append(event)
            if event["what"] == "ready":
                self._ready = True
                told.set()
        told.set()  # it ended
        process.stdout.close()

    def client(self) -> Client:
        """A client of it, which bears that it is started again."""
        return connect(self.url, self.token, retry_for=f"{2 * READY_S:g} seconds")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def actors(self) -> list[Process]:
        """The shard actors' processes, as many as live just now."""
        return [
            process
            for process in self.tree()
            if keeper.command(process.pid).startswith("ray::ShardActor")
        ]

    def programs(self, name: str) -> list[Process]:
        """Its processes that run a program of that name."""
        return [
            process
            for process in self.tree()
            if os.path.basename(keeper.command(process.pid).partition("\0")[0]) == name
        ]

    def tree(self) -> set[Process]:
        """All its processes."""
        return keeper.offspring([self._process.pid])

    def watch_deaths(self) -> None:
        """Note each actor's death in the log, from now on; call again after restarts."""
        for process in set(self.actors()) - self._watched:
            self._watched.add(process)
            threading.Thread(target=self._note_death, args=(process,), daemon=True).start()

    def _note_death(self, process: Process) -> None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            pass
        else:
            keeper.wait_ended(descriptor)
            os.close(descriptor)
        flow.note(str(self.log), what="killed", pid=process.pid)

    @property
    def process(self) -> Process:
        """The process that serves."""
        found = keeper.identify(self._process.pid)
        assert found is not None, "it has ended"
        return found

    def kill(self, victims: Iterable[Process]) -> list[Process]:
        """SIGKILL processes at once and note their deaths; gives those that were alive."""
        ended = keeper.end(victims)
        for process in ended:  # some may be too young to be watched
            flow.note(str(self.log), what="killed", pid=process.pid)
        return ended

    def kill_tree(self) -> int:
        """SIGKILL every process; gives how many there were."""
        ended = self.kill(self.tree())
        self._process.wait()
        self._reader.join()
        return len(ended)

    def stop(self) -> None:
        """Stop it cleanly, if it runs."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self.kill_tree()
        self._reader.join()
