"""Start, attach to and stop the cluster of a data directory's shard actors.

`start_local` brings up a Ray cluster of this process's own, quietly, and one actor per shard. What
was left of a former local run on the same directory is ended first, and the keeper ends what this
one leaves (see keeper). `attach` uses a cluster that is there already, of one machine or of many:
actors that a former process has left on it are ended first, and at the end its own are.

All blocking Ray calls run in one thread that lives as long as the process: the kernel ends Ray's
processes when the *thread* that started them ends.

How it fails: with the error of the shard that could not open (the author's and the caller's
faults as themselves, the rest as `ClusterStartFailed`), after everything was taken down again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import ray
from ray import _raylet as ray_core
from ray._private import worker as ray_worker
from ray.exceptions import ActorDiedError, RayError

from ..runtime import limits
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import (
    AuthorError,
    CallerError,
    ClusterStartFailed,
    StoreDamaged,
    from_wire,
)
from ..runtime.ids import Placement
from . import topology
from .identity_ray import connected_to
from .keeper import Process, is_alive
from .local_run import LocalRun
from .shard_ray import ShardActor, actor_class
from .spare_ray import bring_spare
from .topology import ShardSpec, actor_name

log = logging.getLogger("toque.cluster")
logging.getLogger("toque").addHandler(logging.NullHandler())
T = TypeVar("T")

_OBJECT_STORE_BYTES = 80 * limits.MIB  # nothing of toque's goes through it but resource steps
_POLL_S = 0.05
_ASK_S = 5.0  # then it is looked whether Ray is still there
_RAY_SENTENCE_CHARS_MAX = 300
_OF_THE_DRIVER = ("RAY_gcs_rpc_server_reconnect_timeout_s",)
"""Settings of Ray's that a process which only connects needs as well, unless it has its own."""


# --- Ray itself ---


def start_ray(
    scratch: str,
    *,
    num_cpus: int | None = None,
    resources: dict[str, float] | None = None,
    namespace: str = "toque",
    preload: Sequence[str] = (),
) -> dict[str, str | None]:
    """Start a local Ray cluster that is this process's own, and say nothing.

    Args:
        scratch: a short, private directory for Ray's sockets, logs and secret.
        num_cpus: as Ray takes it; None counts the machine's.
        resources: custom resources of this machine.
        namespace: for actors made without one.
        preload: as for `topology.process_environment`.

    Returns:
        What its settings were in this process's environment before, for `restore_environment`.
    """
    secret = os.path.join(scratch, "auth")
    _write_private(secret, SystemEntropy().new_id() + SystemEntropy().new_id())
    settings = topology.process_environment(secret, preload)
    former = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    _read_environment_again()
    _silence()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ray.init(
        num_cpus=num_cpus,
        resources=resources,
        namespace=namespace,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=True,
        object_store_memory=_OBJECT_STORE_BYTES,
        _temp_dir=os.path.join(scratch, "ray"),
    )
    with contextlib.suppress(ValueError):  # in the main thread Ray has put its own in place
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return former


def restore_environment(former: dict[str, str | None]) -> None:
    """What this process starts of Ray by itself from now on is not to have our settings."""
    for name, value in former.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _read_environment_again()


def connect_ray(address: str, namespace: str) -> None:
    """Connect to the Ray cluster at an address, and say nothing."""
    for name in _OF_THE_DRIVER:
        os.environ.setdefault(name, topology.process_environment()[name])
    _read_environment_again()
    _silence()
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)


def _read_environment_again() -> None:
    """Ray's core reads its settings and its secret once, when it is imported; again, now."""
    if hasattr(ray_core, "Config"):
        ray_core.Config.initialize("")
    if hasattr(ray_core, "AuthenticationTokenLoader"):
        ray_core.AuthenticationTokenLoader.instance().reset_cache()


def _silence() -> None:
    """What Ray would print on this process's terminal goes to the log."""
    last = [""]

    def to_log(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        for line in data.get("lines", ()) if data.get("pid") != "autoscaler" else ():
            if (told := told_by_ray(line)) != last[0]:
                last[0] = told
                log.info("ray: %s", told)

    if hasattr(ray_worker, "print_to_stdstream"):
        ray_worker.print_to_stdstream = to_log


def told_by_ray(text: str) -> str:
    """The sentence in what Ray tells: not its log files' tails, nor dumps of its inner state."""
    first = text.strip().partition("\n")[0]
    return first.partition("[state-dump]")[0].strip()[:_RAY_SENTENCE_CHARS_MAX]


def _write_private(path: str, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


# --- the cluster ---


class Cluster:
    """The shard actors of one data directory. Made by `start_local` and `attach`.

    Attributes:
        specs: by shard.
        handles: the actors, by shard.
        node: the Ray node this process is on.
        address: of the Ray cluster; None: a local one, which this process starts.
        ray_address, ray_id: where that cluster's directory service is, and which cluster it is;
            see identity_ray.
    """

    def __init__(
        self,
        specs: list[ShardSpec],
        run: LocalRun | None,
        thread: ThreadPoolExecutor,
        address: str | None = None,
    ) -> None:
        self.specs = {spec.shard: spec for spec in specs}
        self.handles: dict[str, Any] = {}
        self.node = ""
        self.run = run
        self.address = address
        self.ray_address = self.ray_id = ""
        self.num_cpus: int | None = None
        self.resources: dict[str, float] | None = None
        self.connected_before = ray.is_initialized()
        self.roots: list[Process] = []
        self._former: dict[str, str | None] = {}
        self._thread = thread
        self._class = actor_class()

    @property
    def spec(self) -> ShardSpec:
        """Any of the specs, for what they have in common."""
        return next(iter(self.specs.values()))

    @property
    def leftovers_ended(self) -> int:
        """How many processes of a former run were ended at the start."""
        return len(self.run.leftovers) if self.run is not None else 0

    @property
    def may_connect_anew(self) -> bool:
        """Whether it uses a cluster that was there, over a connection that is its own."""
        return self.run is None and not self.connected_before and bool(self.ray_id)

    async def blocking(self, work: Callable[..., T], *args: Any) -> T:
        """Run a blocking Ray call in the thread that all of them share."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, _without_exit, work, *args
        )

    def _up(self) -> None:
        if self.run is not None:
            former = start_ray(
                self.run.run_dir,
                num_cpus=self.num_cpus,
                resources=self.resources,
                namespace=self.spec.namespace,
                preload=(ShardActor.__module__, self.spec.factory.partition(":")[0]),
            )
            self._former = self._former or former
            self.roots = self.run.cluster_roots()
        else:
            if not self.connected_before:
                assert self.address is not None
                connect_ray(self.address, self.spec.namespace)
            self.ray_address, self.ray_id = connected_to()
            for spec in self.specs.values():
                _end_former(spec)
        self.node = ray.get_runtime_context().get_node_id()
        for shard in self.specs:
            self.make_actor(shard)

    def make_actor(self, shard: str) -> None:
        """Make the shard's actor, or find it."""
        spec = self.specs[shard]
        options = {**topology.actor_options(spec), "get_if_exists": True}
        self.handles[shard] = self._class.options(**options).remote(spec)

    async def keep_spare(self) -> None:
        """Have an idle worker in the local cluster, if Ray has room for one; see `spare_ray`.

        Raises:
            TimeoutError: Ray is slow, or not there.
            RayError: Ray can't.
        """
        if self.run is None or self.run.has_idle_worker():
            return
        end = await self.blocking(bring_spare)
        await asyncio.wait_for(asyncio.wrap_future(end.future()), limits.ACTOR_START_MAX_MS / 1000)

    async def ask(self, shard: str, method: str, timeout_s: float) -> Any:
        """Call a control method of a shard's actor.

        Raises:
            TimeoutError: no answer in time.
            RayError: the actor is gone, or being restarted.
        """
        reference = getattr(self.handles[shard], method).remote()
        return await asyncio.wait_for(asyncio.wrap_future(reference.future()), timeout_s)

    async def wait_ready(self, timeout_ms: int = limits.SHARD_START_MAX_MS) -> None:
        """Wait until all shards are open, but those whose stores are damaged: they stay closed.

        Raises:
            CallerError, AuthorError: as the shard that can't open told it.
            ClusterStartFailed: a shard did not open in time; says why, as far as known.
        """
        tasks = [asyncio.ensure_future(self._wait_open(s, timeout_ms)) for s in self.specs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_open(self, shard: str, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        seen = "its actor does not answer"
        while (left := until - loop.time()) > 0:
            try:
                health = await self.ask(shard, "health", min(left, _ASK_S))
            except TimeoutError:
                if not all(map(is_alive, self.roots)):
                    break
                continue
            except ActorDiedError as error:
                raise ClusterStartFailed(
                    f"shard {shard} did not start: {error}", {"shard": shard}
                ) from error
            except RayError as error:
                seen = str(error)
            else:
                if health["state"] == "open":
                    return
                if health["final"]:
                    refused = from_wire(health["error"])
                    if isinstance(refused, StoreDamaged):
                        log.error("shard %s stays closed: %s", shard, refused)
                        return
                    raise refused
                seen = f"it is {health['state']}"
                if health["error"]:
                    seen += f": {health['error'][1]}"
            await asyncio.sleep(_POLL_S)
        raise ClusterStartFailed(
            f"shard {shard} was not open after {timeout_ms / 1000:g} s; {seen}.", {"shard": shard}
        )

    async def rebuild(self) -> None:
        """Bring the shards up anew after Ray was lost: on a local cluster that is started anew, or
        on the one that is now at the address."""
        if self.run is None and not self.may_connect_anew:
            raise ClusterStartFailed("Ray is gone, and it was not started here.")
        await self.blocking(self._rebuild)
        await self.wait_ready()

    def _rebuild(self) -> None:
        if self.run is not None:
            self.run.end_processes()
        ray.shutdown()
        self._up()

    async def stop(self, drain_ms: int = limits.DRAIN_MAX_MS) -> None:
        """Drain the shards and take down what this process started."""
        drains = (self.ask(shard, "drain", drain_ms / 1000) for shard in self.handles)
        for shard, told in zip(
            list(self.handles), await asyncio.gather(*drains, return_exceptions=True), strict=True
        ):
            if isinstance(told, BaseException):
                log.warning("shard %s was not drained: %r", shard, told)
        await self.take_down()

    async def take_down(self) -> None:
        """End what this process started, at once: actors and Ray, or its connection to it."""
        await self.blocking(self._down)
        self._thread.shutdown()

    def _down(self) -> None:
        try:
            for handle in self.handles.values():
                with contextlib.suppress(RayError, ValueError):
                    ray.kill(handle)
            if not self.connected_before:
                ray.shutdown()
            if self._former:
                restore_environment(self._former)
        finally:
            if self.run is not None:
                self.run.close()


def _without_exit(work: Callable[..., T], *args: Any) -> T:
    """Ray calls `sys.exit` where it can't go on; that must not end who asked."""
    try:
        return work(*args)
    except SystemExit as error:
        raise ClusterStartFailed(f"Ray gave up: {error}") from error


def _new_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="toque-ray")


async def start_local(
    data_dir: str | os.PathLike[str],
    *,
    placement: Placement,
    factory: str,
    settings: dict[str, Any] | None = None,
    num_cpus: int | None = None,
    resources: dict[str, float] | None = None,
    timeout_ms: int = limits.SHARD_START_MAX_MS,
) -> Cluster:
    """Start Ray and the shard actors of a data directory; return when all shards are open.

    Raises:
        DataDirInUse: another live process has the directory.
        CallerError, AuthorError: a shard can't open; the error is its own.
        ClusterStartFailed: Ray or a shard did not come up in time.
    """
    path = os.path.realpath(data_dir)
    os.makedirs(path, exist_ok=True)
    thread = _new_thread()
    loop = asyncio.get_running_loop()
    try:
        run = await loop.run_in_executor(thread, LocalRun, path)
    except BaseException:
        thread.shutdown()
        raise
    entropy = SystemEntropy()
    try:
        cluster = Cluster(
            topology.shard_specs(
                data_dir=path,
                run_dir=run.run_dir,
                placement=placement,
                token=bytes.fromhex(entropy.new_id() + entropy.new_id()),
                factory=factory,
                settings=settings or {},
                starter=run.starter,
            ),
            run,
            thread,
        )
    except BaseException:
        await loop.run_in_executor(thread, run.close)
        thread.shutdown()
        raise
    cluster.num_cpus = num_cpus
    cluster.resources = resources
    try:
        await cluster.blocking(cluster._up)
        await cluster.wait_ready(timeout_ms)
    except BaseException as error:
        await cluster.take_down()
        if isinstance(error, Exception) and not isinstance(
            error, (CallerError, AuthorError, ClusterStartFailed)
        ):
            raise ClusterStartFailed(f"Ray did not start: {error}") from error
        raise
    return cluster


def _end_former(spec: ShardSpec) -> None:
    """End the actor that a former process left: it knows another secret, and maybe other code.

    Raises:
        ClusterStartFailed: Ray does not forget it.
    """
    pause = threading.Event()
    for _ in range(round(limits.PROCESS_END_MAX_MS / 1000 / _POLL_S)):
        try:
            ray.kill(ray.get_actor(actor_name(spec.shard), namespace=spec.namespace))
        except ValueError:  # there is none
            return
        pause.wait(_POLL_S)
    raise ClusterStartFailed(f"the actor that a former process left for {spec.shard} stays.")


async def attach(
    address: str, specs: list[ShardSpec], *, timeout_ms: int = limits.SHARD_START_MAX_MS
) -> Cluster:
    """Make the shard actors on the Ray cluster at `address`; return when all shards are open.

    If this process ends without `stop`, they go on, until another process attaches. A process that
    is connected to Ray already keeps its connection; `address` is not looked at.

    Raises:
        CallerError, AuthorError: a shard can't open; the error is its own.
        ClusterStartFailed: Ray can't be reached, or a shard did not come up in time.
    """
    cluster = Cluster(specs, None, _new_thread(), address)
    try:
        await cluster.blocking(cluster._up)
        await cluster.wait_ready(timeout_ms)
    except BaseException as error:
        await cluster.take_down()
        if isinstance(error, (RayError, OSError, RuntimeError)) and not isinstance(
            error, ClusterStartFailed
        ):
            raise ClusterStartFailed(f"Ray at {address} can't be used: {error}") from error
        raise
    return cluster
