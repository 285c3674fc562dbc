"""The recovery campaign in full (`make campaign-recovery`): half an hour of kills.

Environment: TOQUE_ROUNDS (20) of each kind; TOQUE_FIRST (1), the seed of moments and victims.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.recovery.campaign import KINDS, campaign, table


@pytest.mark.campaign
@pytest.mark.cluster
@pytest.mark.timeout(7200)
def test_nothing_is_lost_over_many_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = int(os.environ.get("TOQUE_ROUNDS", "20"))
    seed = int(os.environ.get("TOQUE_FIRST", "1"))
    with capsys.disabled():
        print()
        figures = asyncio.run(campaign(list(KINDS), rounds, 500, seed=seed))
        print(table(figures))
    assert [text for one in figures.values() for text in one.violations] == []
    assert all(
        one.repeated and one.recoveries_s
        for kind, one in figures.items()
        if kind not in ("stop", "clock")
    )
