"""How the stores of a format are made: `python -m tests.migration.making FOLDER`.

It writes `FOLDER/NAME.sql`, a text for each shard, by the code that there is now. The folders under
`stores` were made when their format was the newest, by this program as it was then. A house lives
for some minutes and is killed while one instance runs, others queue, sleep, await events, are
paused, have ended, and one has been deleted.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.migration.house import House
from toque.runtime.datadir import SHARDS_FOLDER, store_path
from toque.runtime.simloop import VirtualTimeLoop


async def live(folder: Path) -> None:
    """Make a house, let it live, and kill it."""
    house = House(folder)
    await house.register()
    client = house.client
    await client.run_instance("adds", "ended", 40)
    await client.create_instance("fails", "errored")
    await house.until("fails", "errored", "errored")
    await client.create_instance("sleeps", "sleeping")
    await house.until("sleeps", "sleeping", "waiting")
    await client.instance("sleeps", "sleeping").send_event("early", "came early")
    await client.create_instance("asks", "asking", {"name": "Ada"})
    await client.create_instance("asks", "paused", {"name": "Paul"}, request_id="make-paused")
    await client.create_instance("asks", "terminated", {"name": "Tom"})
    for id in ("asking", "paused", "terminated"):
        await house.until("asks", id, "waiting")
    await client.instance("asks", "asking").send_event("other", {"kept": True})
    await client.instance("asks", "paused").pause(request_id="pause-paused")
    await client.instance("asks", "terminated").terminate()
    await client.run_instance("adds", "deleted", 1)
    await client.instance("adds", "deleted").delete()
    await house.counter("visits").add(7)
    await house.counter("visits").add_later(5, 600_000)
    await client.create_instance("holds", "running")
    await house.until("holds", "running", "running")
    for id in ("queued-1", "queued-2"):
        await client.create_instance("adds", id, 100)
    await asyncio.sleep(3)  # leases settle
    await house.crash()


def text_of(store: Path) -> str:
    """A store as SQL that makes the same rows again."""
    with closing(sqlite3.connect(store)) as connection:
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        lines = [f"PRAGMA application_id = {mark};", *connection.iterdump()]
    return "\n".join(lines) + "\n"


def store_from(text: str, store: Path) -> None:
    """The store that a text tells of."""
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript(text)
        connection.execute("PRAGMA journal_mode = WAL").close()


def make(target: Path) -> None:
    """Make the texts of the newest format."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / SHARDS_FOLDER).mkdir()
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(live(folder))
        for shard in ("c0", "d0"):
            text = text_of(store_path(folder, shard))
            (target / f"{shard}.sql").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
