"""Chaos on a real Ray: a shard's process is killed, and what comes back is timed."""

from __future__ import annotations

import asyncio

import pytest

from toque.loadtest.options import resolved
from toque.loadtest.result import Result
from toque.loadtest.run import run_on
from toque.loadtest.targets_http import Fresh, server_target


@pytest.mark.cluster
@pytest.mark.timeout(180)
def test_a_killed_shard_comes_back_and_nothing_is_lost() -> None:
    options = resolved(
        "chaos", rate=15.0, duration_s=8.0, kill_every_s=1.0, kills=1, drain_s=60.0, seed="3"
    )

    async def main() -> Result:
        return await run_on(server_target(Fresh(True, 1), 64), options)

    result = asyncio.run(main())
    assert len(result.chaos) == 1
    recovered_s = result.chaos[0].recovered_s
    assert recovered_s is not None
    assert 0 < recovered_s < 60
    assert result.latencies["recovery"].count == 1
    counts = result.counts
    assert (counts.offered, result.stopped_early) == (120, None)
    assert counts.accepted + counts.refused + counts.failed == 120
    assert counts.completed >= counts.accepted > 60
