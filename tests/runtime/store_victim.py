"""A process that is killed while it commits: prints each batch number once it is durable.

Run as `python store_victim.py FILE`. Each batch holds two rows of one owner, one of them with a
blob of many pages, so that a commit takes several writes of the file.
"""

from __future__ import annotations

import asyncio
import sys

from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Query, Table

ROWS = Table("rows", (("entity", "TEXT"), ("n", "INTEGER"), ("payload", "BLOB")), key_size=2)

COUNT = Query("count", "SELECT count(*) FROM rows WHERE entity = 'small'")


async def main(path: str) -> None:
    store = SqliteStore.open(path, tables=[ROWS])
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ((count,),) = store.query_now(COUNT)
    first = 1 + count

    def write(n: int) -> None:
        store.put("o", ROWS, ("small", n, b"%d" % n))
        seq = store.put("o", ROWS, ("large", n, bytes([n % 256]) * 20_000))
        store.when_durable(seq, lambda error: wrote(n, error))

    def wrote(n: int, error: BaseException | None) -> None:
        if error is not None:
            ended.set_exception(error)
            return
        print(n, flush=True)
        write(n + 1)

    write(first)
    await ended


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
