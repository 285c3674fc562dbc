"""The recovery campaign's short form: a round of each kind of kill, few instances."""

from __future__ import annotations

import asyncio

import pytest

from tests.recovery.campaign import campaign, table


@pytest.mark.cluster
def test_nothing_is_lost_when_processes_are_killed() -> None:
    figures = asyncio.run(campaign(["actor", "all", "tree"], 1, 60, seed=1))
    print(table(figures))
    assert [text for one in figures.values() for text in one.violations] == []
    for kind, one in figures.items():
        assert one.kills, kind
