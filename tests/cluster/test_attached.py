"""A runtime on a Ray that was there before it: over TCP, with workers, and taken down again."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.conftest import has_ended
from tests.engines import worker_app
from toque.actors import topology
from toque.actors.cluster_ray import Cluster
from toque.actors.identity_ray import connected_to, which_answers
from toque.api import wiring_ray

pytestmark = [pytest.mark.cluster]
WAIT_S = 60.0


@pytest.fixture
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        yield Path(folder, "data")


@pytest.mark.usefixtures("cluster")
async def test_a_runtime_uses_a_ray_that_is_there_and_leaves_it_as_it_was(
    data: Path, cluster: Cluster
) -> None:
    pids = []
    for life in range(2):
        async with wiring_ray.start_ray(
            data, app_path=worker_app.__file__, data_shards=1, address="auto"
        ) as runtime:
            client = runtime.client()
            where = await client.run_instance("Where", timeout=WAIT_S)
            pids.append(runtime.shards is not None and where.output[0])
            apart = await client.create_instance("Apart", params=0)
            await apart.send_event("word", "x")
            status = await apart.wait(WAIT_S)
            assert status.success, status.error
            assert status.output["run"] not in pids, "it has a process of its own"
            assert [path.name for path in sorted((data / "run").glob("*.tcp"))] == [
                "c0.tcp",
                "d0.tcp",
            ]
            names = {one["name"] for one in ray.util.list_named_actors(all_namespaces=True)}
            assert {"shard-c0", "shard-d0"} <= names
            mine = topology.namespace(str(data.resolve()))
        assert has_ended(pids[life], 10_000), "its shards end with it"
        left = ray.util.list_named_actors(all_namespaces=True)
        assert [one for one in left if one["namespace"] == mine] == []
        assert list((data / "run").glob("*.tcp")) == []
    assert len(set(pids)) == 2
    assert (await cluster.ask("d0", "health", WAIT_S))["state"] == "open"  # another's is untouched


async def test_it_is_known_which_cluster_answers_at_an_address(cluster: Cluster) -> None:
    """Else a server would never leave a cluster that was lost."""
    address, mine = await cluster.blocking(connected_to)
    assert mine
    assert await asyncio.wait_for(which_answers(address), WAIT_S) == mine
