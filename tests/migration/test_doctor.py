"""The doctor of a stopped directory with accounts on V1, moving, and moved: no false damage."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.migration.rig import ACCOUNT, GATEKEEPER, OLD, rig_at
from toque.api.doctor_sqlite import Survey, mend
from toque.runtime.ids import Placement
from toque.runtime.pages_sqlite import changing
from toque.runtime.simloop import VirtualTimeLoop

PLACEMENT = Placement(2, 2)


async def _made(folder: Path, steps: str) -> None:
    """A directory whose account has instances of every kind, left after some of the steps."""
    async with rig_at(folder, running_max=6, v1=(4, 1_000), lost_births=5) as rig:
        for n in range(3):
            await rig.create(f"ask/{n}", "ask")
        await rig.create("done", params=b"0", wait_ms=5_000)
        for n in range(12):
            await rig.create(f"{n}", params=b"1000")
        await asyncio.sleep(10)
        if steps == "v1":
            return
        frozen = await rig.freeze()
        if steps == "adopted":
            await rig.call(None, GATEKEEPER, "adopt", "m1", frozen)
        if steps in ("moving", "adopted"):
            return
        await rig.adopt(frozen)
        await rig.old(None, "route", "m1")
        if steps == "aborted":
            await rig.abort()
        elif steps == "healed":
            await rig.heal()
            await asyncio.sleep(10)


def _found(folder: Path) -> list[tuple[str, str]]:
    survey = Survey(folder, PLACEMENT, round(time.time() * 1_000))
    return [
        (each.code, each.detail)
        for each in survey.findings()
        if each.code not in ("alarm.overdue", "bundle.missing")  # its clock was a virtual one
    ]


@pytest.mark.parametrize("steps", ["v1", "moving", "adopted", "routed", "aborted", "healed"])
def test_no_plane_looks_damaged(tmp_path: Path, steps: str) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(_made(tmp_path, steps))
    unborn = [("instance.unborn", "3 instances")] if steps != "healed" else []
    assert _found(tmp_path) == unborn


def test_what_an_accountold_forgot_is_found_and_mended(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(_made(tmp_path, "healed"))
    shard = PLACEMENT.shard_of(OLD)
    with changing(tmp_path / "shards" / f"{shard}.sqlite") as store:
        ((key,),) = store.execute(
            "SELECT key FROM souschef_parked WHERE state = 'queued' LIMIT 1"
        ).fetchall()
        for table in ("souschef_parked", "souschef_order"):
            store.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
    home = next(name for name in PLACEMENT.data_names() if _has(tmp_path, name, key))
    with changing(tmp_path / "shards" / f"{home}.sqlite") as store:
        store.execute("DELETE FROM alarms WHERE key = ?", (key,))
    findings = list(Survey(tmp_path, PLACEMENT, 0).findings())
    assert [each.code for each in findings if each.changes] == ["queue.unknown"]
    mend(tmp_path, findings)
    assert "queue.unknown" not in [code for code, _ in _found(tmp_path)]


def _has(folder: Path, shard: str, key: str) -> bool:
    with closing(sqlite3.connect(folder / "shards" / f"{shard}.sqlite")) as store:
        return bool(store.execute("SELECT 1 FROM instances WHERE entity = ?", (key,)).fetchall())


def test_a_lease_that_is_short_is_found_on_v2_only(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(_made(tmp_path, "healed"))
    shard = PLACEMENT.shard_of(GATEKEEPER)
    assert shard == PLACEMENT.shard_of(ACCOUNT)
    with changing(tmp_path / "shards" / f"{shard}.sqlite") as store:
        store.execute("UPDATE gatekeeper_leases SET ledger = 0, target = 0")
    assert [code for code, _ in _found(tmp_path)] == ["lease.short"]
