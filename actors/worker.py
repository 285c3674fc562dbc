"""A worker: a process of its own for user code, started for a shard and ended with it.

The shard listens on a socket made for this one worker, with a secret of its own, so that code in
the worker holds no key to any shard. What the worker does is a factory's, named by import path.
A *launcher* brings the process up: as a plain child (here), or as a Ray actor (`code_host_ray`).

A worker never outlives its shard: it leaves when its link is lost (the factory sees to that), and
a thread of its own, which turns even while the main loop hangs, watches the processes that it
belongs to and, as a child, the pipe to its parent.

    python -m toque.actors.worker       reads its `WorkerSpec` from standard input
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, cast

import msgspec

from ..runtime import limits
from ..runtime.errors import InvalidArgument, WorkerLost
from .keeper import Process, identify, is_alive

log = logging.getLogger("toque.worker")
_KEPT_NAMES = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("LC_", "PYTHON")
_RAYS_PREFIXES = ("RAY_", "OMP_", "CUDA_", "NVIDIA_", "ROCR_", "HIP_", "ONEAPI_", "NEURON_", "TPU_")
ACCOUNT_VARIABLE = "TOQUE_ACCOUNT"
"""Whose code a process of Ray's runs, if not the trusted account's."""
ASKED_VARIABLE = "TOQUE_ASKED"
"""The names of the variables that its author asked for, as JSON."""


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment is passed on to strangers' code: nothing that may be a secret."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT_NAMES or name.startswith(_KEPT_PREFIXES)
    }


def scrub_environment(environment: MutableMapping[str, str]) -> None:
    """In a process of Ray's: take out what other accounts' code may not see, before it is imported.

    The trusted account's processes are left as they are. What the author asked for stays, and so
    does what Ray itself reads and sets.
    """
    if ACCOUNT_VARIABLE not in environment:
        return
    asked = json.loads(environment.get(ASKED_VARIABLE, "[]"))
    kept = {ACCOUNT_VARIABLE, ASKED_VARIABLE, *asked, *child_environment(environment)}
    for name in set(environment) - kept:
        if not name.startswith(_RAYS_PREFIXES):
            del environment[name]


class WorkerSpec(msgspec.Struct, frozen=True):
    """All that a worker needs. Plain data.

    Attributes:
        name: names it in logs, and in the handshake.
        address: where the shard listens for it.
        token: the secret of that one link.
        factory: `module:function`; `await function(spec)` does the work, and ends when it is over.
        settings: the factory's own.
        account: whose code it runs, if not the trusted one's.
        watched: `(pid, start)` of processes of this machine whose end ends the worker.
    """

    name: str
    address: str
    token: bytes
    factory: str
    settings: dict[str, Any]
    account: str | None = None
    watched: list[tuple[int, int]] = []

    def __repr__(self) -> str:  # a traceback must not show the token
        return f"WorkerSpec({self.name!r})"


class Launched(Protocol):
    """A worker that was started."""

    @property
    def process(self) -> Process | None:
        """Its process, if it is on this machine."""

    def kill(self) -> None:
        """End it at once, whatever it does."""

    async def end(self) -> None:
        """Kill it, and return when it is gone."""


class Launcher(Protocol):
    """Starts workers."""

    @property
    def listen(self) -> str:
        """How a shard is to listen for them: `unix`, or the host whose TCP port they can reach."""

    @property
    def resources(self) -> str:
        """`module:class` of what runs bodies with resources in its workers; empty: nothing."""

    async def launch(
        self, spec: WorkerSpec, options: dict[str, Any], ended: Callable[[str], None]
    ) -> Launched:
        """Start one. Returns when its process runs, however long resources are waited for.

        Args:
            spec: what it is to do.
            options: resources and environment variables, as Ray takes them.
            ended: called once on the caller's loop if it ends, with what is known.

        Raises:
            OSError, WorkerLost: it did not start.
        """


# --- plain children -------------------------------------------------------------------------


class ChildLauncher:
    """Workers as children of this process. Resources are not reserved for them."""

    listen = "unix"
    resources = ""

    async def launch(
        self, spec: WorkerSpec, options: dict[str, Any], ended: Callable[[str], None]
    ) -> Launched:
        loop = asyncio.get_running_loop()
        variables = dict(options.get("runtime_env", {}).get("env_vars", {}))
        starting = loop.run_in_executor(None, _start_child, spec, variables)
        try:
            child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _Child(await starting, loop, lambda how: None).end()
            raise
        return _Child(child, loop, ended)


def _environment(spec: WorkerSpec) -> dict[str, str]:
    """The trusted account's code has the server's own; no other account's sees its secrets."""
    return dict(os.environ) if spec.account is None else child_environment(os.environ)


def _start_child(spec: WorkerSpec, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-m", "toque.actors.worker"],
        stdin=subprocess.PIPE,
        env={**_environment(spec), **variables},
        start_new_session=True,  # Ctrl-C on the terminal is not for it
    )
    assert child.stdin is not None
    try:
        child.stdin.write(msgspec.json.encode(spec) + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        child.wait()
        raise WorkerLost(f"worker {spec.name} did not start.") from None
    return child


class _Child:
    def __init__(
        self,
        child: subprocess.Popen[bytes],
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[str], None],
    ) -> None:
        self._child = child
        self._gone: asyncio.Future[None] = loop.create_future()
        self.process = identify(child.pid)

        def gone(how: str) -> None:
            self._gone.set_result(None)
            ended(how)

        def wait() -> None:
            code = child.wait()
            assert child.stdin is not None
            child.stdin.close()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            try:
                loop.call_soon_threadsafe(gone, f"its process ended {how}")
            except RuntimeError:  # the loop is closed: nobody is left to tell
                pass

        threading.Thread(target=wait, name=f"toque-wait-{child.pid}", daemon=True).start()

    def kill(self) -> None:
        self._child.kill()

    async def end(self) -> None:
        self._child.kill()
        await asyncio.shield(self._gone)


# --- in the worker --------------------------------------------------------------------------


def named(name: str) -> Any:
    """What `module:name` names."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"{name!r} can't be imported: {error}.") from error


async def work(spec: WorkerSpec) -> None:
    """Do what the spec says, until it is over."""
    factory: Callable[[WorkerSpec], Awaitable[None]] = named(spec.factory)
    await factory(spec)


def watch(watched: list[tuple[int, int]], pipe: int | None = None) -> None:
    """End this process when one of those it belongs to ends, or the pipe closes."""

    def until_gone() -> None:
        pause = threading.Event()
        while all(is_alive(Process(*one)) for one in watched):
            pause.wait(limits.STARTER_CHECK_MS / 1_000)
        os._exit(3)

    def until_closed() -> None:
        while os.read(cast(int, pipe), 1):
            pass
        os._exit(3)

    if watched:
        threading.Thread(target=until_gone, daemon=True).start()
    if pipe is not None:
        threading.Thread(target=until_closed, daemon=True).start()


def main() -> None:
    """Run a worker in this process."""
    line = sys.stdin.buffer.readline()
    if not line:
        return
    spec = msgspec.json.decode(line, type=WorkerSpec)
    watch(list(spec.watched), sys.stdin.fileno())
    asyncio.run(work(spec))
    os._exit(0)  # threads of hung bodies are not waited for


if __name__ == "__main__":
    main()
