"""The supervisor: notices what Ray does not, a shard actor that hangs or is stopped.

It asks each actor for its health once per period, never with more than one call under way. An
actor that is silent too long, or whose main loop has not turned for too long, is killed by the
operating system (a stopped process obeys nothing else) and Ray starts it anew. An actor that Ray
has given up is made again. If Ray's own processes are lost, a local cluster is rebuilt; a cluster
that was there before is the business of those who run it, and when another one answers at its
address, the shards are made on that. A local cluster is kept with an idle worker, so that a shard
that is killed need not wait for a new one.

While a shard opens it may take longer: importing a workflow file blocks the main loop. A process
that gives no sign of life after its start is ended too: it has noted its number as its first act
(see claims), and if it has not come so far, Ray's workers that are nobody's are ended.

It holds no state that matters: it may be stopped and started at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError

from ..runtime import limits
from ..runtime.errors import ClusterStartFailed
from ..runtime.handler_notes import handler_notes_path, read_handling
from ..runtime.notes import notes_path, read_notes
from . import keeper
from .claims import Claim, read_claim
from .cluster_ray import Cluster
from .identity_ray import which_answers
from .keeper import Process

log = logging.getLogger("toque.supervisor")

_EVENTS_MAX = 1_000
_RETRY_S = 0.05


class Event(NamedTuple):
    """Something that happened to a shard.

    Attributes:
        shard: its name; "ray" for Ray's own processes.
        what: `down`, `hung`, `silent`, `failed`, `back` or `lost`.
        reason: a sentence.
        took_ms: in `back`, the time since its last sign of life before; else 0.
    """

    shard: str
    what: str
    reason: str
    took_ms: int


class Supervisor:
    """Watches the actors of a cluster until it is closed.

    Args:
        cluster: whose actors.
        on_event: told of each event; must not raise.
        period_ms: how often each actor is asked.
        silence_max_ms: how long an actor, or its main loop, may give no sign.
        start_max_ms: how long a new process may take to its first sign.
    """

    def __init__(
        self,
        cluster: Cluster,
        on_event: Callable[[Event], None] | None = None,
        *,
        period_ms: int = limits.HEARTBEAT_PERIOD_MS,
        silence_max_ms: int = limits.HEARTBEAT_SILENCE_MAX_MS,
        start_max_ms: int = limits.ACTOR_START_MAX_MS,
    ) -> None:
        self.events: deque[Event] = deque(maxlen=_EVENTS_MAX)
        self.health: dict[str, dict[str, Any]] = {}
        self._cluster = cluster
        self._on_event = on_event
        self._period_s = period_ms / 1000
        self._silence_s = silence_max_ms / 1000
        self._start_s = start_max_ms / 1000
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._down: set[str] = set()
        self._last_well: dict[str, float] = {}
        self._quiet_since: dict[str, float] = {}
        self._claims: dict[str, Claim | None] = {}
        self._rebuilding = asyncio.Lock()
        self._seen = asyncio.Event()
        self._back = asyncio.Event()

    def start(self) -> None:
        """Begin to watch."""
        for shard in self._cluster.specs:
            self._tasks.append(self._loop.create_task(self._watch(shard), name=f"watch {shard}"))
        if self._cluster.run is not None:
            self._tasks.append(self._loop.create_task(self._watch_ray(), name="watch ray"))
            self._tasks.append(self._loop.create_task(self._keep_spare(), name="spare"))
        elif self._cluster.may_connect_anew:
            self._tasks.append(self._loop.create_task(self._watch_attached(), name="watch ray"))

    async def wait_seen(self) -> None:
        """Wait until every actor has been seen well once."""
        await self._seen.wait()

    async def close(self) -> None:
        """Stop watching; actors are left as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _tell(self, shard: str, what: str, reason: str, took_ms: int = 0) -> None:
        event = Event(shard, what, reason, took_ms)
        self.events.append(event)
        log.log(
            logging.INFO if what == "back" else logging.WARNING, "%s %s: %s", shard, what, reason
        )
        if self._on_event is not None:
            self._on_event(event)

    def _is_down(self, shard: str, what: str, reason: str) -> None:
        if shard not in self._down:
            self._down.add(shard)
            self._tell(shard, what, reason)

    # --- one shard ---

    async def _watch(self, shard: str) -> None:
        while True:
            async with self._rebuilding_is_over():
                healthy = await self._check(shard)
            await asyncio.sleep(self._period_s if healthy else _RETRY_S)

    @contextlib.asynccontextmanager
    async def _rebuilding_is_over(self) -> Any:
        async with self._rebuilding:
            pass
        yield

    async def _check(self, shard: str) -> bool:
        health = await self._ask(shard)
        if health is None:
            return False
        known = self.health.get(shard)
        self.health[shard] = health
        opening = health["state"] != "open"
        patience_s = limits.SHARD_START_MAX_MS / 1000 if opening else self._silence_s
        hung_s = health["tick_age_ms"] / 1000
        if hung_s > patience_s:
            blocked = f"its main loop has not turned for {hung_s:.1f} s"
            self._is_down(shard, "hung", f"{blocked}{self._who_blocks(shard)}")
            await self._kill(shard)
            return False
        if opening:
            if health["final"] and (known is None or not known["final"]):
                self._tell(shard, "failed", health["error"][1])
            return False
        now = self._loop.time()
        restarted = known is not None and known["process"] != health["process"]
        if restarted:  # so fast that no call was refused meanwhile
            self._is_down(shard, "down", "its process ended, and another one is there already")
        if shard in self._down:
            self._down.discard(shard)
            took_ms = round((now - self._last_well.get(shard, now)) * 1000)
            self._tell(shard, "back", f"open again, epoch {health['epoch']}", took_ms)
            self._back.set()
        self._last_well[shard] = now
        if len(self._last_well) == len(self._cluster.specs):
            self._seen.set()
        return True

    async def _ask(self, shard: str) -> dict[str, Any] | None:
        """The actor's health; None if it gave none, after doing what can be done about it."""
        answer: asyncio.Future[dict[str, Any]] | None = None
        handle = self._cluster.handles[shard]
        try:
            answer = asyncio.wrap_future(handle.health.remote().future())
            while not answer.done() and (left_s := self._patience_left(shard)) > 0:
                await self._wait(shard, answer, min(left_s, self._period_s))
                if handle is not self._cluster.handles[shard]:
                    return None  # it was made anew; the former one may never answer
            if not answer.done():
                await self._silent(shard)
                await asyncio.wait((answer,), timeout=limits.PROCESS_END_MAX_MS / 1000)
            if answer.done():
                health = answer.result()
                self._quiet_since.pop(shard, None)
                return health
        except ActorDiedError as error:
            await self._gone(shard, error)
        except RayError as error:
            self._is_down(shard, "down", _why(error))
            if self._patience_left(shard) <= 0:
                await self._silent(shard)
        finally:
            if answer is not None:
                answer.cancel()
        return None

    async def _wait(self, shard: str, answer: asyncio.Future[Any], timeout_s: float) -> None:
        """Wait a while. As long as this process itself stood still, nobody was silent."""
        until = self._loop.time() + timeout_s
        await asyncio.wait((answer,), timeout=timeout_s)
        late_s = self._loop.time() - until
        if late_s > 0 and shard in self._quiet_since:
            self._quiet_since[shard] += late_s

    def _patience_left(self, shard: str) -> float:
        """For how long its silence may go on; a new process has a new patience."""
        now = self._loop.time()
        claim = read_claim(self._cluster.specs[shard].run_dir, shard)
        if claim != self._claims.get(shard):
            self._claims[shard] = claim
            self._quiet_since.pop(shard, None)
        return self._quiet_since.setdefault(shard, now) + self._patience(shard) - now

    def _patience(self, shard: str) -> float:
        if shard in self._down or shard not in self.health:
            return self._start_s
        opening = self.health[shard]["state"] != "open"
        return limits.SHARD_START_MAX_MS / 1000 if opening else self._silence_s

    async def _silent(self, shard: str) -> None:
        reason = f"no sign of life for {self._patience(shard):g} s{self._who_blocks(shard)}"
        self._down.add(shard)
        self._tell(shard, "silent", reason)  # each time: each ends a process
        await self._kill(shard)

    def _who_blocks(self, shard: str) -> str:
        """The instance or entity whose code is on the shard's loop, as the shard has noted it."""
        spec = self._cluster.specs[shard]
        blamed = [one.key for one in read_notes(notes_path(spec.data_dir, shard)) if one.on_loop]
        if blamed:
            return f"; the code of instance {blamed[0]} is on it"
        handling = read_handling(handler_notes_path(spec.data_dir, shard))
        return f"; the code of entity {handling.ref} is on it" if handling is not None else ""

    async def _gone(self, shard: str, error: Exception) -> None:
        """Ray has given the actor up (someone ended it on purpose): make it anew."""
        self._quiet_since.pop(shard, None)
        self._is_down(shard, "down", _why(error))
        if self._ray_is_there():
            with contextlib.suppress(RayError, ValueError):
                await self._in_time(self._cluster.make_actor, shard)

    async def _in_time(self, work: Callable[..., Any], *args: Any) -> None:
        """Have Ray do something; it may hang with its own processes, so it is not waited for long.

        Calls that hang are finished one after the other once Ray answers again.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.shield(self._cluster.blocking(work, *args)), self._silence_s
            )

    async def _kill(self, shard: str) -> None:
        """End the shard's process, the one that answered last or the one that came after it."""
        self._quiet_since.pop(shard, None)
        if not keeper.end(self._suspects(shard), wait_ms=0):
            with contextlib.suppress(RayError):  # on another node nobody but Ray can do it
                await self._in_time(_end_elsewhere, self._cluster.handles[shard])

    def _suspects(self, shard: str) -> list[Process]:
        """Live processes on this machine, one of which is the shard's."""
        node = self._cluster.node
        claims = {
            one: claim
            for one, spec in self._cluster.specs.items()
            if (claim := read_claim(spec.run_dir, one)) is not None and claim.node == node
        }
        mine = {claims[shard].process} if shard in claims else set()
        health = self.health.get(shard)
        if health is not None and health["node"] == node and health["process"]:
            mine.add(Process(*health["process"]))
        alive = [process for process in mine if keeper.is_alive(process)]
        if alive or self._cluster.run is None:
            return alive
        others = {claim.process for claim in claims.values()}
        return [one for one in self._cluster.run.idle_workers() if one not in others]

    # --- Ray ---

    def _ray_is_there(self) -> bool:
        return ray.is_initialized() and all(map(keeper.is_alive, self._cluster.roots))

    async def _keep_spare(self) -> None:
        """Have a worker in which a shard can start anew, once all are well."""
        await self._seen.wait()
        while True:
            self._back.clear()
            async with self._rebuilding_is_over():
                with contextlib.suppress(RayError, TimeoutError, ClusterStartFailed):
                    await self._cluster.keep_spare()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._back.wait(), limits.SPARE_WORKER_PERIOD_MS / 1000)

    async def _watch_ray(self) -> None:
        """A local cluster of which a process ended is started anew."""
        while True:
            await asyncio.sleep(self._period_s)
            if self._ray_is_there():
                continue
            for process in self._cluster.roots:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)  # actors outlive a raylet that is a zombie
            await self._rebuild(
                "a process of the local Ray cluster ended", "the local Ray cluster was rebuilt"
            )

    async def _watch_attached(self) -> None:
        """A cluster that is there no more, but another one at its address, is left for that.

        It is looked for only when a shard has been down for long: while Ray's directory service is
        away, shards go on, and a service that comes back with all it knew needs nobody's help.
        """
        cluster = self._cluster
        while True:
            await asyncio.sleep(self._silence_s)
            if ray.is_initialized() and not self._is_long_down():
                continue
            which = await which_answers(cluster.ray_address)
            if ray.is_initialized() and which in ("", cluster.ray_id):
                continue
            await self._rebuild(
                f"at {cluster.ray_address} is another Ray cluster than before",
                "the shards are on the new Ray cluster",
            )

    def _is_long_down(self) -> bool:
        since = self._loop.time() - self._silence_s
        return any(self._last_well.get(shard, since) <= since for shard in self._down)

    async def _rebuild(self, lost: str, back: str) -> None:
        started = self._loop.time()
        self._tell("ray", "lost", lost)
        async with self._rebuilding:
            try:
                await self._cluster.rebuild()
            except Exception as error:
                self._tell("ray", "failed", f"it did not come up again: {error}")
                return
        self._tell("ray", "back", back, round((self._loop.time() - started) * 1000))


def _end_elsewhere(handle: Any) -> None:
    ray.kill(handle, no_restart=False)


def _why(error: BaseException) -> str:
    if isinstance(error, ActorUnavailableError):
        return "its process ended or can't be reached"
    return str(error).partition("\n")[0][:300]
