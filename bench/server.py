"""A `toque dev` process that a measure starts, watches and ends.

It runs in a session of its own, so that Ctrl-C reaches the measure alone, which then ends it; its
processes are ended by their ids, also when it does not end by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import toque
from toque.runtime import limits

from . import processes

APP = Path(__file__).with_name("app.py")
READY_S = 180
STOP_S = 60
_SERVE = """
import sys
from toque.runtime import limits
limits.IDLE_EVICTION_MS = int(sys.argv.pop(1))
from toque.api.cli import main
main()
"""


class Server:
    """A server on a data directory; as a context it is ended at the end.

    Args:
        folder: holds `data`, which may be of an earlier one, and the log.
        embedded: one process, without Ray.
        idle_ms: when idle instances leave memory (embedded only); None: as usual.
        environment: more variables for its processes.
        arguments: more arguments for `toque dev`.

    Attributes:
        access: `{"url", "token"}`.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        app: Path = APP,
        embedded: bool = False,
        idle_ms: int | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.data = folder / "data"
        self._log = folder / "server.log"
        self._told = self.data / "dev.json"
        self._told.unlink(missing_ok=True)
        start = ["-m", "toque.api.cli"] if idle_ms is None else ["-c", _SERVE, str(idle_ms)]
        command = [sys.executable, *start, "dev", str(app), "--data", str(self.data)]
        command += ["--port", "0", "--creates", str(limits.CREATES_PER_SECOND_MAX)]
        command += [*(["--embedded"] if embedded else []), *arguments]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        try:
            self.access = self._wait_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self) -> dict[str, Any]:
        end = time.monotonic() + READY_S
        while not self._told.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                said = self._log.read_text()[-3000:]
                raise SystemExit(f"the server did not come up within {READY_S} s. It said:\n{said}")
            time.sleep(0.02)
        found: dict[str, Any] = json.loads(self._told.read_text())
        return found

    @property
    def pid(self) -> int:
        """The root of its processes."""
        return self.process.pid

    def memory_bytes(self) -> int:
        """Proportional set size of all its processes."""
        return sum(processes.memory_bytes(pid) for pid in processes.descendants(self.pid))

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far."""
        return sum(processes.cpu_s(pid) for pid in processes.descendants(self.pid))

    def client(self) -> Any:
        """A client of it."""
        return toque.connect(self.access["url"], token=self.access["token"])

    def stop(self) -> None:
        """End it and wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End all its processes at once, as a power cut would."""
        processes.kill(processes.descendants(self.pid))
        self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@contextlib.contextmanager
def fresh(
    *arguments: str, embedded: bool = False, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """A server on a fresh directory, which goes with it."""
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as folder:
        made = Server(Path(folder), *arguments, embedded=embedded, environment=environment)
        with made as server:
            yield server
