"""An account under load while it moves from V1 to V2, and the proof that nothing was amiss.

The load is the same over HTTP and in one process. First the account is filled on V1: instances
that have ended, that hold a slot, that wait, and that are queued, some of them without an Engine.
Then creates come at even distances whatever becomes of them (open loop), lists are walked,
instances are looked at, paused, resumed and sent events; and the account is moved meanwhile.

Proven at the end: no request failed; each acknowledged instance ended as it must, and is listed
once; each walk by cursor showed what was acknowledged before it exactly once; no more ran, were
held or leased at any instant than may be, by the shards' files (see `slots`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.recovery import slots
from tests.recovery.moving_flow import HOLD, QUICK, WAIT
from toque.api.client import Client
from toque.api.listing import FINAL_STATUSES
from toque.gatekeeper.planes import InstanceUnborn
from toque.runtime.errors import InvalidTransition

WORKFLOW = "Moving"
MOVING_S = 5.0
"""So long after it has healed creates still count as made while it moved."""
_WALK_PAUSE_S = 0.2
_LOOK_PAUSE_S = 0.02


class Sizes(NamedTuple):
    """How much of what.

    Attributes:
        finished, holding, waiting, queued: instances on V1 before the move; with `lost_births`
            every so manieth of all has no Engine, and counts as queued.
        limit: how many may run.
        hold_s, work_s: how long a holder keeps its slot; how long the others' step takes.
        v1_rate, v2_rate: creates a second before and after the move has begun.
        before_s, after_s: how long creates come before the move, and after it has healed.
        lookers: how many look on at once.
    """

    finished: int
    holding: int
    waiting: int
    queued: int
    lost_births: int
    limit: int
    hold_s: float
    work_s: float
    v1_rate: float
    v2_rate: float
    before_s: float
    after_s: float
    lookers: int = 2


FULL = Sizes(20_000, 400, 3_600, 10_000, 68, 400, 60.0, 0.05, 10, 300, 10, 20)
SMALL = Sizes(60, 6, 20, 30, 9, 8, 1.0, 0.0, 20, 60, 0.3, 0.5)


@dataclass
class Figures:
    """What came out.

    Attributes:
        acknowledged: how many creates were, those of the filling included.
        failed: requests that gave an error, by its name.
        unborn: requests that V1 could not do, since their instance has no Engine: V1's own fault.
        retries: how often the SDK sent a request again.
        kills: how many shard actors were killed.
        creates_s: how long each create took that began while the account moved, in order.
        others_s: and each before or after.
        states: each state of the move and when it was reached, in ms.
        at_freeze: V1's instances then.
        walks, looks, pauses, events: how many of each were made.
        samples, most: how often slots were counted, and the most of each.
        ends: instances by status, at the end.
        violations: sentences.
    """

    acknowledged: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    unborn: int = 0
    retries: int = 0
    kills: int = 0
    creates_s: list[float] = field(default_factory=list)
    others_s: list[float] = field(default_factory=list)
    states: list[tuple[str, int]] = field(default_factory=list)
    at_freeze: dict[str, int] = field(default_factory=dict)
    walks: int = 0
    looks: int = 0
    pauses: int = 0
    events: int = 0
    samples: int = 0
    most: slots.Sample | None = None
    ends: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def stood_ms(self) -> int:
        """For how long the account took no calls."""
        at = dict(self.states)
        return at.get("routed", 0) - at.get("planned", 0)

    def told(self) -> str:
        """All of it as text."""
        lines = [
            f"acknowledged {self.acknowledged}, ends {dict(self.ends)}",
            f"at the freeze {self.at_freeze}",
            f"states {self.states}: no calls for {self.stood_ms} ms at most",
            f"creates while it moved: {_told(self.creates_s)}; others: {_told(self.others_s)}",
            f"failed requests {dict(self.failed)}, SDK retries {self.retries}, kills {self.kills}",
            f"refused by V1 for want of an Engine {self.unborn}",
            f"walks {self.walks}, looks {self.looks}, pauses {self.pauses}, events {self.events}",
            f"slots counted {self.samples} times; at most {self.most}",
            f"violations: {len(self.violations)}",
            *self.violations[:20],
        ]
        return "\n".join(lines)


def percentile(values: list[float], percent: float) -> float:
    """A percentile of some values; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))] if values else 0


def _told(seconds: list[float]) -> str:
    parts = [f"p{p} {percentile(seconds, p) * 1000:.1f} ms" for p in (50, 99)]
    return f"{len(seconds)}, {', '.join(parts)}, max {max(seconds, default=0) * 1000:.1f} ms"


class Move:
    """See the module.

    Args:
        client: of the account.
        migration: gives how the move stands: `(state, when each was reached, counts)`.
        start: begins it.
        data: the data directory.
        sizes: how much of what.
        seed: of what is looked at.

    Attributes:
        moving: whether a create that begins now counts as made while the account moves.
        is_over: the load has ended, and whatever breaks things has to end too.
    """

    def __init__(
        self,
        client: Client,
        start: Callable[[], Awaitable[Any]],
        migration: Callable[[], Awaitable[Any]],
        data: Path,
        sizes: Sizes,
        seed: int = 1,
    ) -> None:
        self.client = client
        self.figures = Figures()
        self.sizes = sizes
        self.waiting: list[str] = []
        self.acked: dict[str, list[Any]] = {}
        self.moving = False
        self.is_over = self._has_healed = False
        self._reader: slots.SlotReader | None = None
        self._start = start
        self._migration = migration
        self._data = data
        self._chance = random.Random(seed)
        self._sent: set[str] = set()
        self._paused: set[str] = set()
        self._creating: set[asyncio.Task[None]] = set()
        self._number = 0
        self._rate = sizes.v1_rate

    async def run(self) -> None:
        """Move the filled account under load; then let all that waits go on."""
        side = [asyncio.create_task(self._creates()), asyncio.create_task(self._walk())]
        side += [asyncio.create_task(self._look_around()) for _ in range(self.sizes.lookers)]
        side.append(asyncio.create_task(self._touch()))
        try:
            await pause(self.sizes.before_s)
            await self._move()
            await pause(self.sizes.after_s)
            self.is_over = True
        finally:
            for task in side:
                task.cancel()
            ended = await asyncio.gather(*side, return_exceptions=True)
        for error in ended:
            if not isinstance(error, asyncio.CancelledError):
                raise AssertionError("what goes on beside the move has ended") from error
        await asyncio.gather(*self._creating)
        await self._release()

    def close(self) -> None:
        """End what counts slots. May be called again."""
        if self._reader is not None:
            self._reader.close()

    async def finish(self) -> None:
        """Wait until all have ended, and judge."""
        figures = self.figures
        try:
            found = await self._until("drained")
            figures.states = [(each.state, ms_of(each.since)) for each in found.states]
            await self._until_counts(
                lambda counts: (
                    not any(
                        number for status, number in counts.items() if status not in FINAL_STATUSES
                    )
                )
            )
        finally:
            self.close()
        await self._judge()
        if self._reader is not None:
            figures.samples, figures.most = self._reader.samples, self._reader.most
            figures.violations += self._reader.violations
        if not figures.samples or not figures.walks or not figures.looks or not figures.creates_s:
            figures.violations.append("nothing was proven: no samples, walks, looks or creates")
        figures.acknowledged = len(self.acked)
        figures.retries = self.client.retries

    # --- filling ----------------------------------------------------------------------------

    async def fill(self) -> None:
        """Fill the account on V1."""
        sizes = self.sizes
        self._reader = slots.SlotReader(self._data, self.sizes.limit)
        await self._make(sizes.finished, QUICK, 0.0)
        born = sizes.finished - (sizes.finished // sizes.lost_births if sizes.lost_births else 0)
        await self._until_counts(lambda counts: counts.get("complete", 0) >= born - 1)
        self.waiting = await self._make(sizes.waiting, WAIT, sizes.work_s)
        await self._until_counts(
            lambda counts: (
                counts.get("waiting", 0) >= sizes.waiting * 0.9 and not counts.get("running", 0)
            )
        )
        await self._make(sizes.holding, HOLD, sizes.hold_s)
        await self._make(sizes.queued, QUICK, sizes.work_s)

    async def _make(self, count: int, kind: str, for_s: float) -> list[str]:
        specs = []
        for _ in range(count):
            self._number += 1
            instance_id = f"{kind}-{self._number}"
            specs.append({"id": instance_id, "params": [kind, self._number, for_s]})
        if specs:
            for result in await self.client.create_instances(WORKFLOW, specs):
                assert result.outcome == "created", result
                self.acked[result.id] = specs[result.index]["params"]
        return [spec["id"] for spec in specs]

    async def counts(self) -> dict[str, int]:
        """Instances by status."""
        return (await self.client.get_workflow(WORKFLOW)).instances

    async def _until_counts(
        self, is_so: Callable[[dict[str, int]], bool], within_s: float = 600
    ) -> dict[str, int]:
        until = time.monotonic() + within_s
        while not is_so(counts := await self.counts()):
            assert time.monotonic() < until, f"after {within_s} s: {counts}"
            await pause(0.1)
        return counts

    # --- the move ---------------------------------------------------------------------------

    async def _move(self) -> None:
        self.moving = True
        self._rate = self.sizes.v2_rate
        await self._start()
        found = await self._until("healed")
        self._has_healed = True
        await pause(min(MOVING_S, self.sizes.after_s))
        self.moving = False
        if found.at_freeze is not None:
            before = found.at_freeze
            names = ("unborn", "queued", "running", "waiting", "paused")
            self.figures.at_freeze = {name: getattr(before, name) for name in names}

    async def _until(self, state: str, within_s: float = 900) -> Any:
        until = time.monotonic() + within_s
        while True:
            found = await self._migration()
            if state in [each.state for each in found.states]:
                return found
            assert time.monotonic() < until, f"after {within_s} s: {found} {await self.counts()}"
            await pause(0.05)

    async def _release(self) -> None:
        """Let those go on that wait or are paused."""
        for instance_id in self._paused:
            await self._tried(self.client.instance(WORKFLOW, instance_id).resume())
        for instance_id in self.waiting:
            if instance_id not in self._sent:
                self._sent.add(instance_id)
                await self._tried(self.client.instance(WORKFLOW, instance_id).send_event("go", 0))

    # --- what goes on beside ----------------------------------------------------------------

    async def _creates(self) -> None:
        """Creates at even distances, whatever becomes of them."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await pause(due - loop.time())
            task = asyncio.create_task(self._create(due))
            self._creating.add(task)
            task.add_done_callback(self._creating.discard)
            due += 1 / self._rate

    async def _create(self, due: float) -> None:
        self._number += 1
        number, moving = self._number, self.moving
        params = [QUICK, number, self.sizes.work_s]
        instance_id = f"new-{number}"
        if await self._tried(self.client.create_instance(WORKFLOW, instance_id, params)):
            took_s = asyncio.get_running_loop().time() - due
            (self.figures.creates_s if moving else self.figures.others_s).append(took_s)
            self.acked[instance_id] = params

    async def _walk(self) -> None:
        """Lists by cursor, from the oldest on."""
        while True:
            known = set(self.acked)
            seen: Counter[str] = Counter()
            try:
                async for line in self.client.list_instances(WORKFLOW, per_page=500):
                    seen[line.id] += 1
            except Exception as error:
                self._failed(error)
                continue
            self._judge_list(known, seen)
            self.figures.walks += 1
            await pause(_WALK_PAUSE_S)

    def _judge_list(self, known: set[str], seen: Counter[str]) -> None:
        missing = known - seen.keys()
        twice = [each for each, count in seen.items() if count > 1]
        if missing:
            told = f"a list misses {len(missing)}: {sorted(missing)[:5]}"
            self.figures.violations.append(told)
        if twice:
            self.figures.violations.append(f"a list shows twice {len(twice)}: {twice[:5]}")

    async def _look_around(self) -> None:
        while True:
            instance_id = self._chance.choice(list(self.acked))
            found = await self._tried(self.client.instance(WORKFLOW, instance_id).status())
            if found is not None and found.params != self.acked[instance_id]:
                self.figures.violations.append(f"{instance_id} has the params {found.params}")
            self.figures.looks += 1
            await pause(_LOOK_PAUSE_S)

    async def _touch(self) -> None:
        """Pause and resume some that wait, and send some their event."""
        while True:
            left = [each for each in self.waiting if each not in self._sent]
            if left:
                instance = self.client.instance(WORKFLOW, self._chance.choice(left))
                self._paused.add(instance.id)
                if await self._tried(instance.pause()):
                    self.figures.pauses += 1
                if await self._tried(instance.resume()):
                    self._paused.discard(instance.id)
            if len(left) > 2:
                instance_id = self._chance.choice(left)
                self._sent.add(instance_id)
                instance = self.client.instance(WORKFLOW, instance_id)
                if await self._tried(instance.send_event("go", 0)):
                    self.figures.events += 1
            await pause(_LOOK_PAUSE_S)

    async def _tried(self, work: Awaitable[Any]) -> Any:
        """What a request gives; None: it failed, which is counted."""
        try:
            found = await work
        except InvalidTransition:
            return None
        except InstanceUnborn as error:
            if self._has_healed:
                self._failed(error)
            self.figures.unborn += 1
            return None
        except Exception as error:
            self._failed(error)
            return None
        return True if found is None else found

    def _failed(self, error: Exception) -> None:
        self.figures.failed[f"{type(error).__name__}: {error}"[:120]] += 1

    # --- the end ----------------------------------------------------------------------------

    async def _judge(self) -> None:
        seen: Counter[str] = Counter()
        async for line in self.client.list_instances(WORKFLOW, per_page=500):
            seen[line.id] += 1
            self.figures.ends[line.status] += 1
            if line.status != "complete":
                self.figures.violations.append(f"{line.id} is {line.status}")
        self._judge_list(set(self.acked), seen)
        if extra := seen.keys() - self.acked.keys():
            failed = sum(self.figures.failed.values())
            if len(extra) > failed:
                self.figures.violations.append(f"nobody asked for {sorted(extra)[:5]}")
        for instance_id in self._chance.sample(sorted(self.acked), min(200, len(self.acked))):
            status = await self.client.instance(WORKFLOW, instance_id).status()
            kind, number, _ = self.acked[instance_id]
            if status.output != [kind, number]:
                self.figures.violations.append(f"{instance_id} gave {status.output}")


def ms_of(since: str) -> int:
    """A time as the API shows it, in milliseconds."""
    return int(datetime.fromisoformat(since).timestamp() * 1000)


async def pause(seconds: float) -> None:
    """Let time pass: load comes at moments, not after conditions."""
    if seconds > 0:
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)
