"""A process that opens a store of an older format, and kills itself on the way.

    python -m tests.migration.victim STORE POINT

`none`: it does not; it says `ready`, waits for a line, opens the store, and says `open`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from toque.migration.formats import STORE_UPGRADES
from toque.runtime import opening_sqlite, store_sqlite
from toque.runtime.high_water import Mark
from toque.runtime.pages import Pages
from toque.runtime.store_sqlite import SqliteStore

POINTS = ("begun", "half", "upgraded", "marked", "summed", "committed")


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Die at a point of the opening."""
    if point == "begun":
        opening_sqlite._upgrade = die  # type: ignore[assignment]
    elif point == "half":
        finish = opening_sqlite.finish_pending

        def half(connection: Any, upgrades: Any) -> None:
            finish(connection, upgrades)
            connection.execute("CREATE TABLE half (made)")
            die()

        opening_sqlite.finish_pending = half
    elif point == "upgraded":
        upgrade = opening_sqlite._upgrade

        def upgraded(*args: Any) -> None:
            upgrade(*args)
            die()

        opening_sqlite._upgrade = upgraded
    elif point == "marked":
        Pages.make = die  # type: ignore[method-assign]
    elif point == "summed":
        opening_sqlite.begin_lineage = die  # type: ignore[assignment]
    elif point == "committed":
        Mark.begin = die  # type: ignore[method-assign]
    elif point != "none":
        raise SystemExit(f"no point {point!r}")


async def main(store: str, point: str) -> None:
    arm(point)
    if point == "none":
        print("ready", flush=True)
        sys.stdin.readline()
    opened = SqliteStore.open(Path(store), tables=[], upgrades=STORE_UPGRADES)
    print("open", flush=True)
    await opened.close()


if __name__ == "__main__":
    assert store_sqlite.prepare is opening_sqlite.prepare
    asyncio.run(main(sys.argv[1], sys.argv[2]))
