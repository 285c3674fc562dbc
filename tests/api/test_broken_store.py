"""A store that breaks in the embedded runtime: said at once, opened again, and work goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import toque
from toque.api import wiring
from toque.api.client import Client
from toque.runtime import limits, opening
from toque.runtime.errors import DataDirFormat, OutcomeUnknown, ShardUnavailable, StoreFailed
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.writer_sqlite import Writer


@toque.workflow
async def ask(event, step):  # type: ignore[no-untyped-def]
    answer = await step.wait_for_event("ask", "answer", timeout="1 hour")
    return await step.do("tell", lambda: answer.payload)


class Disk:
    """A disk that can be full: then neither commits succeed nor stores open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refused = asyncio.Event()
        self._commit = Writer.commit
        monkeypatch.setattr(Writer, "commit", lambda *args: self.commit(*args))
        monkeypatch.setattr(wiring, "check_room", self.check_room)

    def commit(self, writer: Writer, batch: object) -> object:
        if self.full:
            raise StoreFailed("database or disk is full")
        return self._commit(writer, batch)  # type: ignore[arg-type]

    def check_room(self, path: Path) -> None:
        if self.full:
            self.refused.set()
            raise StoreFailed(f"there is no room for {path.name}.")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_a_full_disk_is_said_soon_and_when_it_has_room_work_goes_on(
    tmp_path: Path, disk: Disk
) -> None:
    async with toque.embedded(tmp_path / "data", [ask]) as runtime:
        client = runtime.client()
        before = await client.create_instance("ask", "before")
        disk.full = True
        with pytest.raises((ShardUnavailable, OutcomeUnknown)):
            await client.create_instance("ask", "during")
        await asyncio.wait_for(disk.refused.wait(), 20)

        start = time.perf_counter()
        with pytest.raises(ShardUnavailable, match="opened again") as told:
            await client.create_instance("ask", "refused")
        assert time.perf_counter() - start < 10
        assert told.value.code == "shard.unavailable"

        disk.full = False
        await finished(client, "before")
        assert (await before.wait(20)).output == "yes"
        await client.create_instance("ask", "refused")
        await finished(client, "refused")


async def finished(client: Client, name: str) -> None:
    """Answer an instance as soon as its shard is open again, and see it complete."""
    for _ in range(20):
        try:
            await client.instance("ask", name).send_event("answer", "yes")
            break
        except (ShardUnavailable, OutcomeUnknown):
            continue
    assert (await client.instance("ask", name).wait(20)).output == "yes"


async def test_what_broke_is_closed_and_a_newer_epoch_serves(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SqliteStore] = []
    first = SqliteStore.open.__func__  # type: ignore[attr-defined]

    def noted(cls: type[SqliteStore], *args: object, **options: object) -> SqliteStore:
        opened.append(first(cls, *args, **options))
        return opened[-1]

    monkeypatch.setattr(SqliteStore, "open", classmethod(noted))
    async with toque.embedded(tmp_path / "data", [ask]) as runtime:
        client = runtime.client()
        await client.create_instance("ask", "before")
        store = next(one for one in opened if one.path.stem == "d0")
        disk.full = True
        with pytest.raises((ShardUnavailable, OutcomeUnknown)):
            await client.create_instance("ask", "during")
        disk.full = False
        await finished(client, "before")
        assert store._dead
        newest = [one for one in opened if one.path.stem == "d0"][-1]
        assert newest.epoch > store.epoch


async def test_a_store_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with toque.embedded(data, [ask]) as runtime:
        await runtime.client().create_instance("ask", "before")
    kept = (data / "shards" / "d0.sqlite").rename(tmp_path / "kept")
    with pytest.raises(DataDirFormat, match=r"d0\.sqlite is missing"):
        async with toque.embedded(data, [ask]):
            pass
    assert not (data / "shards" / "d0.sqlite").exists()
    kept.rename(data / "shards" / "d0.sqlite")
    async with toque.embedded(data, [ask]) as runtime:
        await finished(runtime.client(), "before")


def test_a_store_wants_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening.check_room(tmp_path / "d0.sqlite")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(limits, "STORE_ROOM_MIN_BYTES", 2**62)
    with pytest.raises(StoreFailed, match="no room"):
        opening.check_room(tmp_path / "d0.sqlite")
    assert list(tmp_path.iterdir()) == []
