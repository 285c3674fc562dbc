"""Draws graphs of steps in a process of its own, with bounds on its time and memory.

    python -P -m toque.api.graph_child       (the child; files and names come on standard input)

Python's parser holds the interpreter's lock, and some sources keep it busy for minutes. So no
process that answers anybody parses source that was deployed. The child never runs that source. It
tells each graph as soon as it has it, so a source that is too hard costs those after it only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..actors.worker import child_environment
from ..runtime import limits
from .graph import Node, graphs_of


class _Task(msgspec.Struct):
    files: list[tuple[str, str]]
    names: list[str]


class _Drawn(msgspec.Struct, array_like=True):
    name: str
    graph: dict[str, Any]


async def draw_graphs(
    files: Mapping[str, str],
    names: Iterable[str],
    *,
    cpu_s: int = limits.GRAPH_CPU_MAX_MS // 1_000,
) -> bytes:
    """Graphs of workflows, as `read_graphs` takes them; what is too hard to draw is left out.

    Args:
        files: texts by name.
        names: of the classes and functions.
        cpu_s: how long the child may compute.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, str(cpu_s)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=child_environment(os.environ),
        start_new_session=True,  # Ctrl-C on the terminal is not for it
    )
    assert child.stdin is not None
    assert child.stdout is not None
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(limits.GRAPH_WAIT_MAX_MS / 1_000):
            with contextlib.suppress(ConnectionError):
                child.stdin.write(msgspec.json.encode(_Task(_taken(files), list(names))))
                await child.stdin.drain()
                child.stdin.close()
            while part := await child.stdout.read(limits.GRAPHS_BYTES_MAX):
                parts.append(part)
    except TimeoutError:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
    return b"".join(parts)


def read_graphs(raw: bytes) -> dict[str, Node]:
    """Graphs by the name of their class or function; one that was cut off is left out."""
    drawn: list[_Drawn] = []
    for line in raw.split(b"\n"):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            drawn.append(msgspec.json.decode(line, type=_Drawn))
    return {each.name: each.graph for each in drawn}


def _taken(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """The files to look at: what is imported first, then small ones, up to a sum."""
    found: list[tuple[str, str]] = []
    left = limits.GRAPH_SOURCES_CHARS_MAX
    for name in sorted(files, key=lambda name: (name.count("/"), len(files[name]), name)):
        left -= len(files[name])
        if left >= 0:
            found.append((name, files[name]))
    return found


def main(cpu_s: int) -> None:
    """Draw what standard input asks for."""
    for what, most in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_DATA, limits.GRAPH_MEMORY_BYTES_MAX),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    left = limits.GRAPHS_BYTES_MAX
    for name, graph in graphs_of(dict(task.files), task.names):
        with contextlib.suppress(RecursionError):
            told = msgspec.json.encode(_Drawn(name, graph)) + b"\n"
            left -= len(told)
            if left < 0:
                return
            sys.stdout.buffer.write(told)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
