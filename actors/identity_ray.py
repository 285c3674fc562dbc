"""Which Ray cluster answers at an address: each has an id, made when its directory service is new.

A directory service that is started again without what it knew before is another cluster, even at
the same address, and so is a cluster that was started anew. A process that was connected to the
former one must not ask the new one over its old connection: many of Ray's calls end the process
when they are refused so. The question here goes over a connection of its own.

How it fails: not at all while nothing answers; then it waits, and nobody waits for its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import ray
from ray import _raylet as ray_core
from ray._private import worker as ray_worker


def connected_to() -> tuple[str, str]:
    """The address of the directory service that this process is connected to, and the cluster's
    id; empty if Ray does not tell."""
    address = ray.get_runtime_context().gcs_address
    node: Any = ray_worker._global_node
    try:
        return address, node.cluster_id.hex()
    except AttributeError:
        return address, ""


async def which_answers(address: str) -> str:
    """The id of the cluster that answers at an address, as soon as one does; empty if Ray does not
    tell."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[str] = loop.create_future()
    core: Any = ray_core

    def tell(which: str) -> None:
        if not told.done():
            told.set_result(which)

    def ask() -> None:
        try:
            which = core.GcsClient(address=address).cluster_id.hex()
        except Exception:  # it came and went, or has no such class
            which = ""
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(tell, which)

    threading.Thread(target=ask, name="which-ray", daemon=True).start()
    return await told
