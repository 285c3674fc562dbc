"""A runtime on a Ray cluster of three nodes on this machine, one of which is lost. One story.

    python -m tests.cluster.nodes DATA STORY

The head node hosts no shards, the two others do. Adders add to a ledger on each data shard and
create instances, one call after the other and without repeats, while the story's fault happens:

* `kill` ends all processes of a node (SIGKILL);
* `hang` stops them (SIGSTOP) and lets them go on when others have taken over;
* `owners` does so too, and nobody ends the former owners, which go on beside the new ones;
* `gcs` stops Ray's directory service for a while;
* `kept` kills it, with a shard's process, and starts it again with all that it knew;
* `lost` kills it and starts another cluster at its address, as who keeps nothing of it has to.

Prints what it saw as one JSON object per line, the last one with `"what": "done"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.callers import Adder, Creator, spread
from tests.recovery import flow
from toque.actors import keeper, topology
from toque.runtime.entropy import SystemEntropy
from toque.runtime.link_socket import SocketLinks
from toque.runtime.rpc import Router

ROOT = Path(__file__).parents[2]
STEADY_S = 2.0
BACK_S = 60.0
FORMER = 10_000
"""What former owners are asked to add: no other call adds it."""
ANEW_S = 240.0
"""Nodes whose directory service is gone for good give up after a minute."""


def prepare(folder: Path, story: str) -> None:
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
    if story == "kept":
        store = folder / "gcs"
        store.mkdir()
        os.environ.update(RAY_gcs_storage="rocksdb", RAY_gcs_storage_path=str(store))


def say(what: str, **more: Any) -> None:
    """One line for the test."""
    print(json.dumps({"what": what, **more}, default=str), flush=True)


def pace() -> None:
    """Tell how long this machine takes just now to start two processes that use Ray."""
    start = time.monotonic()
    words = [sys.executable, "-c", "import ray, toque.api.shard_ray"]
    for process in [subprocess.Popen(words) for _ in range(2)]:
        process.wait()
    say("pace", start_s=time.monotonic() - start)


class Story:
    """The cluster, its runtime and those who call it."""

    def __init__(self, runtime: Any, nodes: Any, log: str) -> None:
        self.runtime = runtime
        self.nodes = nodes
        self.callers = [Adder(runtime, key) for key in spread(runtime, 3)]
        self.creator = Creator(runtime, log)
        self._tasks: list[asyncio.Task[None]] = []
        self.call()

    def call(self) -> None:
        """Have all call, each where it stopped."""
        for one in self._all:
            one.forget_pauses()
        self._tasks = [asyncio.create_task(one.run()) for one in self._all]

    async def stop_calling(self) -> None:
        """Have nobody call any more: a create that was left alone could come after all lists."""
        for one in self._all:
            one.stopping = True
        await asyncio.gather(*self._tasks)

    def shards_on(self, *nodes: str) -> list[str]:
        """The shards that some nodes host, as they last told."""
        return [s for s, h in self.runtime.supervisor.health.items() if h["node"] in nodes]

    def shard_of(self, caller: Adder) -> str:
        """The shard that a ledger lives on."""
        shard: str = self.runtime.placement.shard_of(caller.ref)
        return shard

    def victim(self) -> Any:
        """The node that hosts the control shard."""
        wanted = self.runtime.supervisor.health["c0"]["node"]
        return next(node for node in self.nodes.worker_nodes if node.node_id == wanted)

    def processes(self, node: Any) -> list[keeper.Process]:
        """The node's processes: its raylet and all that descend from it."""
        kinds = node.all_processes.values()
        return list(keeper.offspring(one.process.pid for kind in kinds for one in kind))

    def store(self, shard: str) -> Path:
        """The file of a shard."""
        return Path(self.runtime.shards.data_dir, "shards", f"{shard}.sqlite")

    def last_word(self, pid: int) -> str:
        """What a shard's process logged last."""
        logs = Path(self.runtime.shards.data_dir, "logs").glob("*.log*")
        lines = [line for log in logs for line in log.read_text().splitlines()]
        return [line for line in lines if f" {pid} " in line][-1]

    def former(self, shards: list[str], run_dir: Path) -> Any:
        """Calls who owns the shards now, whoever owns them later."""
        where = {shard: (run_dir / f"{shard}.tcp").read_text().strip() for shard in shards}
        loop = asyncio.get_running_loop()
        links = SocketLinks(where.__getitem__, self.runtime.shards.token, loop, SystemEntropy())
        return Router(self.runtime.placement, links, loop)

    async def quiet(self) -> None:
        """Everybody goes on without a pause."""
        for one in (*self.callers, self.creator):
            one.forget_pauses()
        await flow.work_for(STEADY_S)

    async def until_back(self, *nodes: str, within_s: float = BACK_S) -> float:
        """Wait until all shards answer from other nodes; gives how long it took."""
        start = time.monotonic()
        counts = [len(one.acknowledged) for one in self._all]
        while time.monotonic() < start + within_s:
            calls = zip(self._all, counts, strict=True)
            if not self.shards_on(*nodes) and all(
                len(one.acknowledged) >= before + 5 for one, before in calls
            ):
                return time.monotonic() - start
            await flow.work_for(0.05)
        calls = zip(self._all, counts, strict=True)
        say("stuck", calls={one.key: len(one.acknowledged) - before for one, before in calls})
        raise TimeoutError(f"the shards of {nodes} did not come back")

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
        await self.stop_calling()
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
        stale = sum(one.stale for one in self._all)
        say("events", events=[event._asdict() for event in self.runtime.supervisor.events])
        created = [f"i{number}" for number in self.creator.acknowledged]
        say("end", ledgers=ledgers, created=created, instances=ends, unknown=unknown, stale=stale)


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


async def owners(story: Story) -> None:
    """A node stops, others take over, and its shards go on beside theirs for a while.

    As if it were another machine, where a successor can't end the former owner.
    """
    node = story.victim()
    run_dir = Path(story.runtime.shards.run_dir)
    hosted = story.shards_on(node.node_id)
    former = story.former(hosted, run_dir)
    asked = [one for one in story.callers if story.shard_of(one) in hosted]
    for one in asked:  # over links that stay
        assert one.is_new((await former.call(one.ref, "read"))[0])
    await story.stop_calling()
    stopped = await stop_between_commits(story, node, hosted)
    for shard in hosted:
        (run_dir / f"{shard}.process").unlink()
    story.call()
    took = await story.until_back(node.node_id)
    say("fault", shards=hosted, processes=len(stopped), took_s=took, pauses=story.pauses())
    calls = [
        former.call(one.ref, what, *args, timeout_ms=2_000)
        for one in asked
        for what, *args in (("read",), ("add", FORMER))
    ]
    waiting = asyncio.gather(*calls, return_exceptions=True)
    await flow.work_for(0)  # they wait in the sockets of who is stopped
    actors = [one for one in stopped if keeper.command(one.pid).startswith("ray::ShardActor")]
    resume(actors)
    told = list(await waiting)
    again = [former.call(one.ref, "read", timeout_ms=1_000) for one in asked]
    told += await asyncio.gather(*again, return_exceptions=True)
    say(
        "former",
        actors=len(actors),
        last=[story.last_word(one.pid) for one in actors],
        errors=[type(one).__name__ for one in told if isinstance(one, Exception)],
        answers=[one for one in told if not isinstance(one, Exception)],
    )
    former.close()
    resume(one for one in stopped if one not in actors)
    await story.quiet()
    say("steady", pauses=story.pauses())


async def stop_between_commits(story: Story, node: Any, shards: list[str]) -> list[keeper.Process]:
    """Stop all processes of a node; who stands still within a commit would keep its lock."""
    while True:
        await flow.work_for(STEADY_S)
        stopped = story.processes(node)
        for process in stopped:
            os.kill(process.pid, signal.SIGSTOP)
        if not any(is_locked(story.store(shard)) for shard in shards):
            return stopped
        resume(stopped)


def is_locked(store: Path) -> bool:
    """Whether somebody is within a commit."""
    with contextlib.closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as opened:
        try:
            opened.execute("BEGIN IMMEDIATE")
            opened.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
    return False


def resume(processes: Iterable[keeper.Process]) -> None:
    """Have those that are left go on."""
    for process in processes:
        if keeper.is_alive(process):
            os.kill(process.pid, signal.SIGCONT)


async def kept(story: Story) -> None:
    """Ray's directory service is killed, a shard's process too, and the service is back."""
    head = story.nodes.head_node
    head.kill_gcs_server(check_alive=False)
    await story.quiet()
    spared, victim = story.callers[0], story.callers[1]
    shard = story.shard_of(victim)
    before = len(victim.acknowledged)
    os.kill(story.runtime.supervisor.health[shard]["process"][0], signal.SIGKILL)
    await flow.work_for(5 * STEADY_S)
    say("fault", shards=[shard], processes=2, took_s=0, pauses={spared.key: spared.longest_s})
    say("away", acknowledged=len(victim.acknowledged) - before, unknown=victim.unknown)
    head.start_gcs_server()
    took = await story.until_back()
    await story.quiet()
    say("steady", took_s=took, pauses=story.pauses())


async def reap(nodes: list[Any]) -> None:
    """Ask after processes again and again: actors outlive a raylet that is a zombie."""
    while True:
        for node in nodes:
            node.remaining_processes_alive()
        await flow.work_for(0.5)


async def lost(story: Story) -> None:
    """Ray's directory service is killed, and another cluster is at its address."""
    former = story.nodes
    port = int(former.address.rpartition(":")[2])
    former.head_node.kill_gcs_server(check_alive=False)
    await story.quiet()
    await flow.work_for(5 * STEADY_S)
    say("fault", shards=[], processes=1, took_s=0, pauses=story.pauses())
    story.nodes = start_nodes(port)
    left = [former.head_node, *former.worker_nodes]
    reaping = asyncio.create_task(reap(left))
    took = await story.until_back(*(node.node_id for node in left), within_s=ANEW_S)
    reaping.cancel()
    await story.quiet()
    say("steady", took_s=took, pauses=story.pauses())


STORIES = {"kill": kill, "hang": hang, "gcs": gcs, "owners": owners, "kept": kept, "lost": lost}


def start_nodes(port: int | None = None) -> Any:
    """A head that hosts no shards, and two nodes that do."""
    at = {} if port is None else {"gcs_server_port": port}
    nodes = RayNodes(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, **at},
    )
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    return nodes


async def main(data: str, name: str) -> None:
    folder = Path(data).parent
    nodes = start_nodes()
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
        pace()
    for each in {nodes, story.nodes}:
        each.shutdown()
    say("done")


if __name__ == "__main__":
    prepare(Path(sys.argv[1]).parent, sys.argv[2])
    from ray.cluster_utils import Cluster as RayNodes

    from toque.api.wiring_ray import start_ray

    asyncio.run(main(*sys.argv[1:]))
