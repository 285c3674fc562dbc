"""Kills shard processes of a server on this machine, one at a time, and times what comes back.

Who owns a shard is read from the system: the process that has its store open. Recovery ends when a
new instance that lives on the shard has run to its end; behind a control shard: any new instance.
New ones are tried several at a time, so that no single call's patience is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ..actors.keeper import Process, end, identify
from ..api.client import Client
from ..engines.ports import ENGINE_KIND
from ..runtime.datadir import store_path
from ..runtime.entropy import Entropy
from ..runtime.errors import InvalidArgument, ToqueError
from ..runtime.ids import EntityRef, Placement, engine_key
from .whose import check_serves

_PROBE_EVERY_S = 0.1
_PROBES_MAX = 20
PROBED = "LoadOneStep"


def owners(data: Path) -> dict[str, Process]:
    """The process of each shard of a data directory that runs, by the shard's name."""
    wanted: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for path in store_path(data.resolve(), "d0").parent.glob("*.sqlite"):
            wanted[str(path)] = path.stem
    found: dict[str, Process] = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    shard = wanted.get(os.readlink(descriptor.path))
                    process = None if shard is None else identify(pid)
                    if shard is not None and process is not None:
                        found[shard] = process
    return found


def _pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            yield int(entry)


def check_killable(data: Path | None, url: str | None) -> list[str]:
    """The shards that may be killed, or `InvalidArgument`: those of the server at the url."""
    if data is None:
        raise InvalidArgument(
            "chaos kills processes of a server on this machine: let the test start one, or name "
            "the data directory of yours with --data."
        )
    found = owners(data)
    if not found:
        raise InvalidArgument(
            f"no process on this machine has a shard of {data} open; name the server's data "
            "directory with --data."
        )
    if len(set(found.values())) < len(found) or os.getpid() in {p.pid for p in found.values()}:
        raise InvalidArgument(
            f"the shards of {data} share one process, whose death would end the server; chaos "
            "needs a server on Ray."
        )
    check_serves(data, url)
    return sorted(found)


class Probe:
    """Makes instances on a shard until one has ended.

    Args:
        client: of the server.
        account: whose.
        workflow_id: the uuid of `PROBED`.
        placement: where instances live.
        prefix: of the ids.
    """

    def __init__(
        self, client: Client, account: str, workflow_id: str, placement: Placement, prefix: str
    ) -> None:
        self._client = client
        self._account = account
        self._uuid = workflow_id
        self._placement = placement
        self._prefix = prefix
        self._number = 0

    def _next_id(self, shard: str) -> str:
        """An id on the shard, if that is a data shard."""
        while True:
            self._number += 1
            found = f"{self._prefix}.probe.{self._number}"
            key = engine_key(self._account, self._uuid, found)
            lives_on = self._placement.shard_of(EntityRef(ENGINE_KIND, key))
            if not shard.startswith("d") or lives_on == shard:
                return found

    async def _one(self, shard: str) -> bool:
        try:
            status = await self._client.run_instance(PROBED, self._next_id(shard), timeout=60)
        except (ToqueError, TimeoutError):
            return False
        return status.finished

    async def recovered(
        self, shard: str, now: Callable[[], float], within_s: float
    ) -> float | None:
        """Seconds until one has ended; None: not in time."""
        began = now()
        under_way: set[asyncio.Task[bool]] = set()
        try:
            while (left := within_s - (now() - began)) > 0:
                if len(under_way) < _PROBES_MAX:
                    under_way.add(asyncio.ensure_future(self._one(shard)))
                done, under_way = await asyncio.wait(
                    under_way,
                    timeout=min(left, _PROBE_EVERY_S),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if any(task.result() for task in done):
                    return now() - began
            return None
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


async def kill(data: Path, url: str | None, entropy: Entropy) -> str | None:
    """SIGKILL the process of a shard, chosen at random; its name, or None: nobody was there.

    Raises:
        InvalidArgument: by now the directory is of a server that is not the one at the url.
    """
    found = await asyncio.to_thread(owners, data)
    if not found:
        return None
    await asyncio.to_thread(check_serves, data, url)
    shard = sorted(found)[entropy.randrange(len(found))]
    ended = await asyncio.to_thread(end, [found[shard]])
    return shard if ended else None
