"""Whether a server that answers at a url is the one that runs on a data directory here.

Files don't tell it for sure: one that a server left behind may name a port that another has now.
So it is read from the system: the process that listens there has to be of the directory's run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from ..actors.keeper import is_alive, offspring, processes_of, read_run, starter_of
from ..runtime.errors import InvalidArgument

_LISTENS = "0A"
_PORTS = {"http": 80, "https": 443}


def check_serves(data: Path, url: str | None) -> None:
    """Refuse a data directory whose server is not the one at the url.

    Raises:
        InvalidArgument: no server runs on the directory, or another one is under load.
    """
    run = read_run(str(data / "run.json"))
    if run is None or not is_alive(starter_of(run)):
        raise InvalidArgument(
            f"no server runs on {data} now; name the data directory of the server under load "
            "with --data."
        )
    parts = urlsplit(url or "")
    if not is_here(parts.hostname or ""):
        raise InvalidArgument(
            f"chaos kills processes of this machine, and {url} may be another; name the server "
            "by its address here, such as --url http://127.0.0.1:8787."
        )
    port = parts.port or _PORTS.get(parts.scheme, 0)
    starter = starter_of(run)
    mine = {starter.pid, *(each.pid for each in [*processes_of(run), *offspring([starter.pid])])}
    there = listeners(port)
    if not there or not there <= mine:
        raise InvalidArgument(
            f"the server at {url} is not the one that runs on {data} (process {starter.pid}); "
            "chaos would kill a server that is not under load. Name the data directory of the "
            "one at that address with --data, and its own address if a proxy stands before it."
        )


def is_here(host: str) -> bool:
    """Whether a host's name is this machine for sure."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listeners(port: int) -> set[int]:
    """The processes that listen on a port; 0 stands for one that can't be seen."""
    inodes = set(_listening(port))
    found: dict[str, int] = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit():
                for descriptor in os.scandir(f"/proc/{entry}/fd"):
                    with contextlib.suppress(OSError):
                        name = os.readlink(descriptor.path)
                        if name in inodes:
                            found.setdefault(name, int(entry))
    return {found.get(name, 0) for name in inodes}


def _listening(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{words[9]}]"
