"""A commit through a shard's store, against a bare one: of one row, and of a hundred.

What the store adds is the batch, the hand-over to its writer thread and back, the check of the
epoch, and who is told; a hundred rows share that.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Table

from . import Row, Sample, Watch, in_turns
from .bare import VALUE, BareStore

TABLE = Table("bench_rows", (("entity", "TEXT"), ("n", "INTEGER"), ("value", "BLOB")), key_size=2)


async def measure(folder: Path, scale: float) -> list[Row]:
    """Commits of 1 and of 100 rows."""
    store = SqliteStore.open(folder / "layer.sqlite", tables=[TABLE])
    found = []
    with contextlib.closing(BareStore(folder / "bare.sqlite")) as bare:
        try:
            for rows in (1, 100):
                times = max(3, int((400 if rows == 1 else 100) * scale))
                next_row = rows * 1_000_000

                async def layer(rows: int = rows, times: int = times) -> Sample:
                    nonlocal next_row
                    watch = Watch()
                    for _ in range(times):
                        for n in range(rows):
                            store.put(n, TABLE, ("entity", next_row + n, VALUE))
                        next_row += rows
                        await store.flush()
                        watch.unit()
                    return watch.sample()

                async def alone(rows: int = rows, times: int = times) -> Sample:
                    return bare.commits(rows, times)

                what = f"commit of {rows} row{'s' * (rows > 1)}"
                against = "SQLite commit in WAL, fsync"
                wall, cpu = await in_turns(layer, alone)
                found.append(Row("store", what, wall[0], against, wall[1]))
                found.append(Row("store", f"{what}, CPU", cpu[0], against, cpu[1]))
        finally:
            await store.close()
    return found
