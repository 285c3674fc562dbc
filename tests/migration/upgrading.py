"""An upgrade that is not there yet: a store of the newest format, and one with a background part.

Run as `python -m tests.migration.upgrading STORE`, it upgrades a store, prints a line for each
commit of the background part, and ends when there is nothing left to do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from toque.migration.background import Background
from toque.runtime import chain_sqlite, opening_sqlite
from toque.runtime.schema_sqlite import STORE_FORMAT
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Row, Table
from toque.runtime.upgrades import PENDING, Rows, StoreUpgrade

NOTES = Table("notes", (("entity", "TEXT"), ("n", "INTEGER"), ("text", "TEXT")), key_size=2)
NEW = "new form: "
BATCH = 10


def in_new_form(row: Row) -> Row | None:
    """The row as it should be; None: it is."""
    entity, n, text = row
    return None if text.startswith(NEW) or text == "short" else (entity, n, NEW + text)


REWRITES = StoreUpgrade(
    STORE_FORMAT + 1, "texts say their form", after=Rows(NOTES, in_new_form, BATCH)
)
ADDS = StoreUpgrade(
    STORE_FORMAT + 2,
    "notes are counted",
    before=(
        "CREATE TABLE counted (n INTEGER)",
        f"INSERT INTO counted SELECT count(*) FROM notes WHERE text LIKE '{NEW}%'",
    ),
)


@contextmanager
def newest_format(number: int) -> Iterator[None]:
    """This version writes another format."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (opening_sqlite, chain_sqlite):
            patched.setattr(module, "STORE_FORMAT", number)
        yield


def fill(store: SqliteStore, count: int) -> None:
    """Rows in the old form, and some that no upgrade changes."""
    for n in range(count):
        store.put("e", NOTES, (f"e{n % 7}", n, "short" if n % 5 == 0 else f"text {n}"))


def progress_of(store: SqliteStore) -> Any:
    """The notes of background parts."""
    return store.scan(PENDING)


async def run(path: Path, told: Callable[[int], None]) -> None:
    """Upgrade a store, and wait until the background part has ended."""
    loop = asyncio.get_running_loop()
    store = SqliteStore.open(path, tables=[NOTES], upgrades=[REWRITES])
    background = Background(store, [REWRITES], loop)
    background.start()
    while progress_of(store):
        await asyncio.sleep(0)
        if store.durable_seq:
            told(store.durable_seq)
    await store.close()


if __name__ == "__main__":
    with newest_format(REWRITES.to):
        asyncio.run(run(Path(sys.argv[1]), lambda seq: print(seq, flush=True)))
