"""An account moves from V1 to V2 under load, in one process: small, but the real thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.recovery.moving import SMALL, Move
from tests.recovery.serve import MOVING_APP
from toque.api.migration_shapes import migration_shape
from toque.api.wiring import DEFAULT_ACCOUNT, NO_RATES, start_embedded


async def test_an_account_moves_under_load_and_nothing_is_amiss(tmp_path: Path) -> None:
    async with start_embedded(
        tmp_path / "data",
        app_path=MOVING_APP,
        running_max=SMALL.limit,
        creates_per_second=NO_RATES,
        control_plane="v1",
        v1=(SMALL.limit, NO_RATES[0], SMALL.lost_births),
    ) as runtime:
        migrations = runtime.control_plane.migrations

        async def start() -> None:
            await migrations.start(DEFAULT_ACCOUNT)

        async def migration() -> Any:
            return migration_shape(await migrations.status(DEFAULT_ACCOUNT))

        move = Move(runtime.client(), start, migration, tmp_path / "data", SMALL)
        try:
            await move.fill()
            await move.run()
            await move.finish()
        finally:
            move.close()
    figures = move.figures
    assert not figures.violations, figures.told()
    assert not figures.failed, figures.told()
    assert figures.at_freeze["unborn"] > 0, figures.told()
    assert figures.ends.keys() == {"complete"}, figures.told()
    print(figures.told())
