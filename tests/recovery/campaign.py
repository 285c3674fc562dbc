"""The recovery campaign: processes are killed while instances run, and nothing may be lost.

    python -m tests.recovery.campaign [--rounds 20] [--instances 500] [--kinds actor,all,...]

Each round creates instances of five steps (see flow) with the limit at 50, and at random moments
kills, with SIGKILL: `actor` one shard actor; `all` all of them; `raylet` and `gcs` that process of
Ray's own, after which the local Ray is built anew; `tree` every process, the server with Ray and
all, which is then started on the same directory again. `stop` stops one shard actor with SIGSTOP
for 30 s (one round). `clock` sets the wall clocks of all processes, then of each shard actor and of
the server its own, an hour forward or back, or has them go faster and slower, and ends an actor, so
that its shard goes on by another clock. After each round:

* all instances are complete;
* the recorded result of each step is the first that was ever seen, and no completed step ran
  again (see proof);
* no more than 50 ran at any instant, by the log of bodies and by the shards' files (see slots);
* no slot is held; and at the very end none is leased.

Prints a line per round and a table; exits with 1 if anything was violated. A seed gives the same
moments and victims again; what happens between is the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.recovery import flow, proof, slots
from tests.recovery.bad_clock import EVERYBODY, BadClock, bad_clock
from tests.recovery.server import LIMIT, Server
from toque.actors import keeper
from toque.api.client import Client
from toque.runtime.errors import ToqueError

WORKFLOW = "Campaign"
RAYS_OWN = {"raylet": "raylet", "gcs": "gcs_server"}
"""By kind, the name of the program that is killed."""
ONCE = ("tree", *RAYS_OWN)
"""Kinds after which it takes longer until there is something to kill again."""
KINDS = ("actor", "all", *RAYS_OWN, "tree", "clock", "stop")
STOPPED_S = 30.0
QUIET_S = 30.0
END_S = 120.0
LOOKERS = 4
AHEAD_S = (-86_400.0, -3_600.0, -5.0, 5.0, 3_600.0, 86_400.0)
HURRIES = (-0.3, 0.0, 0.3)
CLOCKS_SET = 3


@dataclass
class Figures:
    """What a kind of fault came to, over its rounds."""

    rounds: int = 0
    instances: int = 0
    kills: int = 0
    bodies: int = 0
    repeated: int = 0
    samples: int = 0
    running_max: int = 0
    held_max: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class Round:
    """One round: instances, faults, proof."""

    def __init__(
        self,
        server: Server,
        kind: str,
        name: str,
        instances: int,
        chance: random.Random,
        clock: BadClock | None,
    ) -> None:
        self.server = server
        self.clock = clock
        self.kind = kind
        self.chance = chance
        self.ids = [f"{name}-{number}" for number in range(instances)]
        self.log = server.log
        self.seen: dict[str, set[tuple[int, Any]]] = {}
        self.kills = 0
        self.killed: list[tuple[float, set[int]]] = []

    async def run(self, figures: Figures) -> None:
        """Run it, and add what came out to the figures."""
        reader = slots.SlotReader(self.server.data, LIMIT)
        watching = asyncio.create_task(self._watch_deaths())
        try:
            async with self.server.client() as client:
                done = await self._load(client)
                recorded = await self._recorded(client)
        finally:
            watching.cancel()
            await asyncio.to_thread(reader.close)
        quiet = await asyncio.to_thread(self._wait_released)
        lines = proof.read_log(self.log.read_bytes())
        shown = proof.prove(lines, recorded, LIMIT)
        mine = shown.violations + proof.what_changed(self.seen) + reader.violations + done + quiet
        if not shown.bodies or not reader.samples or (not self.kills):
            mine.append("nothing was proven: no bodies, no samples or no kills")
        figures.rounds += 1
        figures.instances += len(self.ids)
        figures.kills += self.kills
        figures.bodies += shown.bodies
        figures.repeated += shown.repeated
        figures.samples += reader.samples
        figures.running_max = max(figures.running_max, shown.running_max, reader.most.running)
        figures.held_max = max(figures.held_max, reader.most.held)
        if self.kind != "clock":  # the log has the times that the processes' clocks showed
            figures.recoveries_s += recoveries(lines, self.killed)
        figures.violations += mine

    async def _load(self, client: Client) -> list[str]:
        """Create, kill, look on, and wait for the end."""
        creating = asyncio.create_task(
            client.create_instances(
                WORKFLOW, [{"id": one, "params": {"log": str(self.log)}} for one in self.ids]
            )
        )
        lookers = [asyncio.create_task(self._look(client)) for _ in range(LOOKERS)]
        try:
            await self._faults()
            made = await creating
            told = [] if len(made) == len(self.ids) else [f"{len(made)} instances were made"]
            loop = asyncio.get_running_loop()
            until = loop.time() + END_S
            for one in self.ids:
                try:
                    left = max(0.5, until - loop.time())
                    status = await client.instance(WORKFLOW, one).wait(left)
                except TimeoutError as error:
                    told.append(f"stuck: {error}")
                    continue
                if status.status != "complete":
                    told.append(f"{one} is {status.status}: {status.error}")
            return told
        finally:
            for task in (creating, *lookers):
                task.cancel()
            await asyncio.gather(creating, *lookers, return_exceptions=True)

    async def _look(self, client: Client) -> None:
        """Ask again and again how some instance stands; remember each step's result."""
        while True:
            await asyncio.to_thread(threading.Event().wait, 0.05)
            one = self.chance.choice(self.ids)
            try:
                status = await client.instance(WORKFLOW, one).status()
            except ToqueError:  # not created yet, or the server is down
                continue
            self._remember(one, status)

    def _remember(self, one: str, status: Any) -> None:
        for step in status.steps:
            if step.success:
                number = int(step.name.removeprefix("step-").partition("-")[0])
                self.seen.setdefault(one, set()).add((number, step.output))

    async def _recorded(self, client: Client) -> dict[str, list[str]]:
        """By instance, the recorded results, as its steps and as its output tell them."""
        recorded = {}
        for one in self.ids:
            status = await client.instance(WORKFLOW, one).status()
            self._remember(one, status)
            recorded[one] = [step.output for step in status.steps]
            for number, value in enumerate(status.output or []):
                self.seen.setdefault(one, set()).add((number, value))
        return recorded

    # --- faults ---

    async def _faults(self) -> None:
        lasts_s = max(1.0, len(self.ids) / LIMIT * flow.STEPS * flow.BODY_S)
        if self.kind == "stop":
            await pause(lasts_s / 4)
            await self._stop_one()
            return
        if self.kind == "clock":
            await self._wrong_clocks(lasts_s)
            return
        moments = sorted(self.chance.uniform(0.1, lasts_s) for _ in range(2))
        before = 0.0
        for moment in moments[: 1 if self.kind in ONCE else 2]:
            await pause(moment - before)
            before = moment
            await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        at = time.time()
        if self.kind == "tree":
            self.killed.append((at, {process.pid for process in self.server.tree()}))
            self.server.watch_deaths()
            self.kills += self.server.kill_tree()
            self.server.start()
            self.server.watch_deaths()
            return
        actors = self.server.actors()
        if self.kind in RAYS_OWN:
            self.killed.append((at, {process.pid for process in actors}))
            self.kills += len(self.server.kill(self.server.programs(RAYS_OWN[self.kind])))
            return
        victims = actors if self.kind == "all" else self.chance.sample(actors, min(1, len(actors)))
        ended = self.server.kill(victims)
        self.killed.append((at, {process.pid for process in ended}))
        self.kills += len(ended)

    async def _wrong_clocks(self, lasts_s: float) -> None:
        """Clocks go wrong at three moments; at the second an actor ends."""
        clock = self.clock
        assert clock is not None
        clock.right()
        for number in range(CLOCKS_SET):
            await pause(lasts_s / (CLOCKS_SET + 1))
            own = [one.pid for one in (self.server.process, *self.server.actors())]
            for one in [EVERYBODY, *(own if number else ())]:
                clock.put(self.chance.choice(AHEAD_S), one)
                clock.hurry(self.chance.choice(HURRIES), one)
            if number == 1:
                await asyncio.to_thread(self._kill)
        await pause(lasts_s / (CLOCKS_SET + 1))
        assert all(clock.asked(one) for one in own), "somebody never looked at the clock"

    async def _stop_one(self) -> None:
        victim = self.chance.choice(self.server.actors())
        self.killed.append((time.time(), {victim.pid}))
        os.kill(victim.pid, signal.SIGSTOP)
        await pause(STOPPED_S)
        if keeper.is_alive(victim):  # the supervisor was to end it long ago
            os.kill(victim.pid, signal.SIGCONT)
            self.seen.setdefault("the stopped actor", set()).update({(0, "went"), (0, "on")})
        self.kills += 1

    async def _watch_deaths(self) -> None:
        while True:
            await asyncio.to_thread(self.server.watch_deaths)
            await pause(0.1)

    # --- the end ---

    def _wait_released(self) -> list[str]:
        """Wait until no slot is held."""
        return wait_quiet(self.server.data, lambda sample: not sample.running and not sample.held)


def wait_quiet(data: Path, is_quiet: Callable[[slots.Sample], bool]) -> list[str]:
    """Wait until a sample is as it should be; tell if none is in time."""
    until = time.monotonic() + QUIET_S
    sample = None
    while time.monotonic() < until:
        sample = slots.read_slots(data) or sample
        if sample is not None and is_quiet(sample):
            return []
        threading.Event().wait(0.1)
    return [f"after {QUIET_S:g} s of quiet: {sample}"]


async def pause(seconds: float) -> None:
    """Let time pass: the campaign's faults come at moments, not after conditions."""
    await asyncio.to_thread(threading.Event().wait, max(0.0, seconds))


def recoveries(lines: list[proof.Line], killed: list[tuple[float, set[int]]]) -> list[float]:
    """By kill of a process that ran bodies, how long until a new process ran one."""
    found = []
    for at, victims in killed:
        before = {line.pid for line in lines if line.at <= at and line.what == "start"}
        after = [
            line.at - at
            for line in lines
            if line.at > at and line.what == "start" and line.pid not in before
        ]
        if after and victims & before:
            found.append(min(after))
    return found


async def campaign(
    kinds: list[str],
    rounds: int,
    instances: int,
    *,
    seed: int,
    data_shards: int = 2,
    keep: Path | None = None,
) -> dict[str, Figures]:
    """Run the campaign; gives the figures by kind.

    Args:
        keep: stop at the first violation and copy the data there.
    """
    figures = {kind: Figures() for kind in kinds}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tq"))
        data, log = Path(folder, "data"), Path(folder, "log")
        clock = stack.enter_context(bad_clock(Path(folder))) if "clock" in kinds else None
        environment = None if clock is None else clock.environment
        server = await asyncio.to_thread(Server, data, log, data_shards, environment=environment)
        try:
            for kind, mine in figures.items():
                chance = random.Random(f"{seed}/{kind}")
                for number in range(1 if kind == "stop" else rounds):
                    log.write_bytes(b"")
                    one = Round(server, kind, f"{kind}-{number}", instances, chance, clock)
                    began = time.monotonic()
                    await one.run(mine)
                    if clock is not None:
                        clock.right()
                    if mine.violations and keep is not None:
                        await asyncio.to_thread(server.kill_tree)
                        shutil.copytree(folder, keep, dirs_exist_ok=True)
                        return figures
                    print(
                        f"{kind} {number + 1}: {time.monotonic() - began:.1f} s, "
                        f"{len(mine.violations)} violations so far",
                        flush=True,
                    )
            # idle SousChefs give their leases back after a while
            mine.violations += await asyncio.to_thread(
                wait_quiet, data, lambda sample: not any(sample)
            )
        finally:
            await asyncio.to_thread(server.stop)
    return figures


def table(figures: dict[str, Figures]) -> str:
    """The figures as lines of text."""
    heads = ("kind", "rounds", "instances", "kills", "bodies", "repeated", "recovery s")
    heads += ("samples", "running", "held", "violations")
    rows = [heads]
    for kind, one in figures.items():
        times = sorted(one.recoveries_s)
        took = f"{times[len(times) // 2]:.1f} (max {times[-1]:.1f})" if times else "-"
        rows.append(
            (
                *(kind, str(one.rounds), str(one.instances), str(one.kills), str(one.bodies)),
                *(str(one.repeated), took, str(one.samples), str(one.running_max)),
                *(str(one.held_max), str(len(one.violations))),
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(heads))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="stop at a violation; copy the data there")
    options = parser.parse_args()
    figures = asyncio.run(
        campaign(
            options.kinds.split(","),
            options.rounds,
            options.instances,
            seed=options.seed,
            keep=options.keep,
        )
    )
    print(table(figures))
    told = [f"{kind}: {text}" for kind, one in figures.items() for text in one.violations]
    print("\n".join(told[:50]))
    sys.exit(1 if told else 0)


if __name__ == "__main__":
    main()
