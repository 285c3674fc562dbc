"""Workers as Ray actors: placed by Ray, with resources of their own.

The actor belongs to the shard actor that made it: Ray ends it when that one ends. It is never
restarted and nothing is called on it but `begin`; what it has to say goes over the socket that
its shard listens on, as for a plain child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import get_node_ip_address

from ..runtime.errors import WorkerLost
from .keeper import Process, end, identify
from .resources_ray import ray_options
from .topology import SHARD_CPUS
from .worker import Launched, WorkerSpec, scrub_environment, watch, work


class WorkerActor:
    """Runs a worker on a thread and loop of its own, so that Ray's stay free."""

    async def begin(self, spec: WorkerSpec, node: str) -> tuple[int, int]:
        """Start the worker; gives its process.

        Args:
            spec: what it is to do.
            node: the shard's node; processes that are watched are on it.
        """
        scrub_environment(os.environ)
        mine = ray.get_runtime_context().get_node_id()
        watch(list(spec.watched) if mine == node else [])

        def run() -> None:
            try:
                asyncio.run(work(spec))
            finally:
                os._exit(0)

        threading.Thread(target=run, name=f"toque-worker-{spec.name}", daemon=True).start()
        process = identify(os.getpid())
        assert process is not None
        return process


class RayLauncher:
    """Starts workers as Ray actors. Made in a process that is connected to Ray.

    Args:
        is_one_machine: all nodes share this machine's file system, so unix sockets reach them.
    """

    resources = "toque.actors.resources_ray:RayResources"

    def __init__(self, *, is_one_machine: bool) -> None:
        address: Any = get_node_ip_address  # untyped
        self.listen = "unix" if is_one_machine else str(address())
        options: dict[str, Any] = {
            # as of shards: with 0 an autoscaler would take the node for idle
            "num_cpus": 0 if is_one_machine else SHARD_CPUS,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        self._class: Any = ray.remote(**options)(WorkerActor)
        self._node = ray.get_runtime_context().get_node_id()

    async def launch(
        self, spec: WorkerSpec, options: dict[str, Any], ended: Callable[[str], None]
    ) -> Launched:
        """See `worker.Launcher`."""
        handle = self._class.options(**ray_options(options, spec.account)).remote()
        try:
            pid, started = await handle.begin.remote(spec, self._node)
        except RayError as error:
            raise WorkerLost(f"worker {spec.name} did not start: {_first_line(error)}") from error
        except asyncio.CancelledError:
            ray.kill(handle)
            raise
        is_near = self.listen == "unix"
        return _Actor(handle, Process(pid, started) if is_near else None)


class _Actor:
    def __init__(self, handle: Any, process: Process | None) -> None:
        self._handle = handle
        self.process = process

    def kill(self) -> None:
        if self.process is not None:
            end([self.process], wait_ms=0)  # a stopped process obeys nothing else
        with contextlib.suppress(RayError):
            ray.kill(self._handle)

    async def end(self) -> None:
        self.kill()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
