"""CPU and memory of process trees, read from /proc, by role; and what machine this is."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_GONE_S = 10
_STARTED = 19  # which word of the rest of /proc/PID/stat says when it was started


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def descendants(root: int) -> list[int]:
    """The process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of one process so far; 0 if it is gone."""
    stat = _stat(pid)
    return 0.0 if stat is None else (int(stat[11]) + int(stat[12])) / _TICKS


def memory_bytes(pid: int) -> int:
    """Proportional set size of one process; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Signal some processes by their ids, this one never, and wait until those killed are gone."""
    chosen = [pid for pid in pids if pid != os.getpid()]
    for pid in chosen:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    end = time.monotonic() + (_GONE_S if number == signal.SIGKILL else 0)
    while time.monotonic() < end:
        if all((stat := _stat(pid)) is None or stat[0] == "Z" for pid in chosen):
            return
        time.sleep(0.02)


def end(process: subprocess.Popen[Any], stop_s: float, number: int = signal.SIGINT) -> None:
    """Ask a process to end, and after `stop_s` end it and all that it has started, by their ids.

    What it starts while it is waited for counts too; an id that another process has got since does
    not. All are looked up before it is asked: when it has ended, nothing tells whose they were.
    """
    known: dict[int, str] = {}
    until, asked = time.monotonic() + stop_s, False
    while True:
        for pid in descendants(process.pid):
            if (stat := _stat(pid)) is not None:
                known[pid] = stat[_STARTED]
        if process.poll() is not None or time.monotonic() > until:
            break
        if asked:
            time.sleep(0.1)
        else:
            process.send_signal(number)
            asked = True
    left = [pid for pid, at in known.items() if (s := _stat(pid)) is not None and s[_STARTED] == at]
    kill(left)
    process.communicate()


def role(pid: int, root: int) -> str:
    """What part of toque a process is."""
    if pid == root:
        return "api"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "gone"
    return "shards" if "ShardActor" in words else "ray"


def cpu_by_role(root: int) -> dict[int, tuple[str, float]]:
    """`{pid: (role, CPU seconds)}` of a toque server's process tree."""
    return {pid: (role(pid, root), cpu_s(pid)) for pid in descendants(root)}


def spent(before: dict[int, tuple[str, float]], root: int) -> dict[str, float]:
    """CPU seconds by role since `before`."""
    total: dict[str, float] = {}
    for pid, (name, seconds) in cpu_by_role(root).items():
        start = before.get(pid, (name, 0.0))[1]
        total[name] = total.get(name, 0.0) + seconds - start
    return total


def machine_busy_s() -> float:
    """CPU seconds that all processes of the machine have used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[n]) for n in (0, 1, 2, 5, 6, 7)) / _TICKS


class Window:
    """What a span of time took.

    Args:
        root: the server's root process; None: this process alone works.

    Attributes:
        wall_s: how long it was.
        cpu_s: CPU seconds by role, this process's as `client`.
        others_cores: cores that other processes kept busy, on average.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root
        self.wall_s = self.others_cores = 0.0
        self.cpu_s: dict[str, float] = {}

    @property
    def cpu_total_s(self) -> float:
        """CPU seconds of all that works here."""
        return sum(self.cpu_s.values())

    def __enter__(self) -> Window:
        self._before = {} if self._root is None else cpu_by_role(self._root)
        self._own, self._busy = time.process_time(), machine_busy_s()
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wall_s = time.perf_counter() - self._start
        self.cpu_s = {} if self._root is None else spent(self._before, self._root)
        self.cpu_s["client"] = time.process_time() - self._own
        others = machine_busy_s() - self._busy - self.cpu_total_s
        self.others_cores = max(0.0, others / self.wall_s)


def machine() -> str:
    """This machine in words: what figures of one may be compared with."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {model}, {memory:.0f} GiB"


def machine_id() -> str:
    """A short name for `machine()`."""
    return blake2b(machine().encode(), digest_size=4).hexdigest()
