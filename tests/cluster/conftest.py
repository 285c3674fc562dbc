"""One Ray cluster for all tests of a session that need no other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toque.actors import cluster_ray
from toque.runtime.ids import Placement

ECHO = "tests.cluster.echo_host:build"


@pytest.fixture(scope="session")
def cluster() -> Iterator[cluster_ray.Cluster]:
    """Two echo shards, `c0` and `d0`, started by this process."""
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        made = asyncio.run(
            cluster_ray.start_local(
                Path(folder, "data"), placement=Placement(1, 1), factory=ECHO, num_cpus=2
            )
        )
        yield made
        asyncio.run(made.stop())
