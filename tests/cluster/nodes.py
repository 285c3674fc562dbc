"""A runtime on a Ray cluster of three nodes on this machine, one of which is lost. One story.

    python -m tests.cluster.nodes DATA STORY

The head node hosts no shards, the two others do. Adders add to a ledger on each data shard and
create instances, one call after the other and without repeats, while the story's fault happens:
`kill` ends all processes of a node (SIGKILL), `hang` stops them (SIGSTOP) and lets them go on when
others have taken over, `gcs` stops Ray's directory service for a while. Prints
what it saw as one JSON object per line, the last one with `"what": "done"`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.recovery import flow
from toque.actors import keeper, topology

ROOT = Path(__file__).parents[2]
STEADY_S = 2.0
BACK_S = 60.0


def prepare(folder: Path) -> None:
    """Set what Ray reads of the environment at its import: ours, and the head's of deploy/."""
    secret = folder / "auth"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(16))
    deployed = next(yaml.safe_load_all((ROOT / "deploy" / "raycluster.yaml").read_text()))
    (head,) = deployed["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    os.environ.update(topology.process_environment(str(secret)))
    os.environ.update({one["name"]: one["value"] for one in head["env"]})
    os.environ["RAY_TMPDIR"] = str(folder)
    (folder / "ray").mkdir()


def say(what: str, **more: Any) -> None:
    """One line for the test."""
    print(json.dumps({"what": what, **more}, default=str), flush=True)


class Adder:
    """Calls one ledger again and again; what was acknowledged, and when."""

    def __init__(self, runtime: Any, key: str) -> None:
        self.key = key
        self.acknowledged: list[int] = []
        self.unknown = 0
        self.longest_s = 0.0
        self._runtime = runtime
        self._last = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        number = 0
        while True:
            try:
                await self.one(number)
            except (ToqueError, TimeoutError):
                self.unknown += 1
                await flow.work_for(0.05)
            else:
                self.heard(number)
            number += 1
            await flow.work_for(0.01)

    async def one(self, number: int) -> None:
        """A call; it is not waited for longer than a moment."""
        ref = EntityRef("Ledger", self.key)
        await self._runtime.router.call(ref, "add", number, timeout_ms=1_000)

    def heard(self, number: int) -> None:
        """It was acknowledged."""
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self.acknowledged.append(number)

    def forget_pauses(self) -> None:
        """What was before does not count."""
        self.longest_s, self._last = 0.0, time.monotonic()


class Creator(Adder):
    """Creates instances; needs a data shard and the control shards."""

    async def one(self, number: int) -> None:
        async with asyncio.timeout(5):
            client = self._runtime.client()
            await client.create_instance("Three", f"i{number}", params=self.key)


def spread(runtime: Any, count: int) -> list[str]:
    """A ledger's key for each data shard."""
    found: dict[str, str] = {}
    number = 0
    while len(found) < count:
        key = f"k{number}"
        found.setdefault(runtime.placement.shard_of(EntityRef("Ledger", key)), key)
        number += 1
    return [found[shard] for shard in sorted(found)]


class Story:
    """The cluster, its runtime and those who call it."""

    def __init__(self, runtime: Any, nodes: Any, log: str) -> None:
        self.runtime = runtime
        self.nodes = nodes
        self.callers = [Adder(runtime, key) for key in spread(runtime, 3)]
        self.creator = Creator(runtime, log)
        self._tasks = [asyncio.create_task(one.run()) for one in (*self.callers, self.creator)]

    def shards_on(self, node: str) -> list[str]:
        """The shards that a node hosts, as they last told."""
        return [s for s, h in self.runtime.supervisor.health.items() if h["node"] == node]

    def victim(self) -> Any:
        """The node that hosts the control shard."""
        wanted = self.runtime.supervisor.health["c0"]["node"]
        return next(node for node in self.nodes.worker_nodes if node.node_id == wanted)

    def processes(self, node: Any) -> list[keeper.Process]:
        """The node's processes: its raylet and all that descend from it."""
        kinds = node.all_processes.values()
        return list(keeper.offspring(one.process.pid for kind in kinds for one in kind))

    async def quiet(self) -> None:
        """Everybody goes on without a pause."""
        for one in (*self.callers, self.creator):
            one.forget_pauses()
        await flow.work_for(STEADY_S)

    async def until_back(self, node: str) -> float:
        """Wait until all shards answer from other nodes; gives how long it took."""
        start = time.monotonic()
        counts = [len(one.acknowledged) for one in self._all]
        while time.monotonic() < start + BACK_S:
            calls = zip(self._all, counts, strict=True)
            if not self.shards_on(node) and all(
                len(one.acknowledged) >= before + 5 for one, before in calls
            ):
                return time.monotonic() - start
            await flow.work_for(0.05)
        calls = zip(self._all, counts, strict=True)
        say("stuck", calls={one.key: len(one.acknowledged) - before for one, before in calls})
        raise TimeoutError(f"the shards of node {node} did not come back")

    @property
    def _all(self) -> list[Adder]:
        return [*self.callers, self.creator]

    def pauses(self) -> dict[str, float]:
        """The longest time between two acknowledgements of each caller."""
        return {one.key: round(one.longest_s, 2) for one in self.callers} | {
            "creates": round(self.creator.longest_s, 2)
        }

    async def end(self) -> None:
        """Stop calling; tell what was acknowledged and what is there."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ledgers = {}
        for one in self.callers:
            total, _rung = await self.runtime.object("Ledger", one.key).read()
            ledgers[one.key] = [one.acknowledged, total]
        client = self.runtime.client()
        ends = {}
        async for line in client.list_instances("Three"):  # also one that nobody was told of
            status = await client.instance("Three", line.id).wait(60)
            ends[line.id] = [status.status, status.output]
        unknown = sum(one.unknown for one in self._all)
        say("events", events=[event._asdict() for event in self.runtime.supervisor.events])
        created = [f"i{number}" for number in self.creator.acknowledged]
        say("end", ledgers=ledgers, created=created, instances=ends, unknown=unknown)


async def kill(story: Story) -> None:
    """A node ends with all its processes."""
    node = story.victim()
    hosted = story.shards_on(node.node_id)
    ended = keeper.end(story.processes(node))
    story.nodes.remove_node(node, allow_graceful=False)
    took = await story.until_back(node.node_id)
    say("fault", shards=hosted, processes=len(ended), took_s=took, pauses=story.pauses())


async def hang(story: Story) -> None:
    """A node stops, others take over, it goes on."""
    node = story.victim()
    hosted = story.shards_on(node.node_id)
    stopped = story.processes(node)
    for process in stopped:
        os.kill(process.pid, signal.SIGSTOP)
    took = await story.until_back(node.node_id)
    say("fault", shards=hosted, processes=len(stopped), took_s=took, pauses=story.pauses())
    alive = [one for one in stopped if keeper.is_alive(one)]
    for process in alive:
        os.kill(process.pid, signal.SIGCONT)
    say("continued", alive=len(alive))
    await story.quiet()
    say("steady", pauses=story.pauses())


async def gcs(story: Story) -> None:
    """Ray's directory service stops for a while."""
    (process,) = story.nodes.head_node.all_processes["gcs_server"]
    pid = process.process.pid
    await story.quiet()
    os.kill(pid, signal.SIGSTOP)
    await flow.work_for(5 * STEADY_S)
    say("fault", shards=[], processes=1, took_s=0, pauses=story.pauses())
    os.kill(pid, signal.SIGCONT)
    await story.quiet()
    say("steady", pauses=story.pauses())


STORIES = {"kill": kill, "hang": hang, "gcs": gcs}


async def main(data: str, name: str) -> None:
    folder = Path(data).parent
    nodes = RayNodes(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    app = ROOT / "tests" / "recovery" / "ledger.py"
    async with start_ray(data, app_path=app, data_shards=3, address=nodes.address) as runtime:
        await runtime.supervisor.wait_seen()
        placed = {shard: h["node"] for shard, h in runtime.supervisor.health.items()}
        say("placed", nodes=placed, workers=[node.node_id for node in nodes.worker_nodes])
        story = Story(runtime, nodes, str(folder / "log"))
        await story.quiet()
        story.creator.forget_pauses()
        await STORIES[name](story)
        await story.end()
    nodes.shutdown()
    say("done")


if __name__ == "__main__":
    prepare(Path(sys.argv[1]).parent)
    from ray.cluster_utils import Cluster as RayNodes

    from toque.api.wiring_ray import start_ray
    from toque.runtime.errors import ToqueError
    from toque.runtime.ids import EntityRef

    asyncio.run(main(*sys.argv[1:]))
