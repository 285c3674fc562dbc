"""A process that claims a shard again and again while others do; see test_owners.

    python -m tests.recovery.claimer FILE NAME CLAIMS

Prints `ready`, waits for a line, then opens the store CLAIMS times and writes rows until it is
fenced or has written enough. One JSON object at the end: how each claim ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from toque.runtime.errors import Fenced, StoreFailed
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Table

ROWS = Table("rows", (("epoch", "INTEGER"), ("n", "INTEGER"), ("who", "TEXT")), key_size=2)
ROWS_PER_CLAIM = 3


async def claim(path: Path, name: str) -> dict[str, Any]:
    """Own the shard for a few commits, or until somebody else does."""
    store = SqliteStore.open(path, tables=[ROWS])
    stored, end = 0, "done"
    try:
        for number in range(ROWS_PER_CLAIM):
            store.put("o", ROWS, (store.epoch, number, name))
            await store.flush()
            stored += 1
    except Fenced:
        end = "fenced"
    except StoreFailed as error:
        end = error.code
    await store.close()
    return {"epoch": store.epoch, "stored": stored, "end": end}


async def main(file: str, name: str, claims: int) -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps([await claim(Path(file), name) for _ in range(claims)]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
