"""Readiness: one look at a time, kept for a moment; a shard that can't commit is not ready."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.doctor import judge_running
from toque.api.doctor_http import parts_of
from toque.api.kept import Kept
from toque.api.server_http import HttpServer
from toque.api.wiring import embedded
from toque.gatekeeper.identity import Identity
from toque.runtime import limits
from toque.runtime.clock import SystemClock
from toque.runtime.errors import StoreFailed
from toque.runtime.ids import EntityRef
from toque.runtime.shard_info import SHARD_INFO_KIND
from toque.runtime.simloop import VirtualTimeLoop


def test_however_many_ask_it_looks_once_and_keeps_that_for_a_moment() -> None:
    looks = 0
    go_on = asyncio.Event()

    async def check() -> dict[str, bool]:
        nonlocal looks
        looks += 1
        await go_on.wait()
        return {"d0": looks == 1}

    async def main() -> None:
        kept = Kept(check, limits.READY_KEPT_MS)
        asked = [asyncio.create_task(kept.get()) for _ in range(50)]
        await asyncio.sleep(1)
        asked[0].cancel()  # a client that goes away takes nobody's answer with it
        go_on.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [{"d0": True}] * 49
        assert await kept.get() == {"d0": True}
        assert looks == 1
        await asyncio.sleep(limits.READY_KEPT_MS / 1000)
        assert await kept.get() == {"d0": False}
        assert looks == 2

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_a_look_that_fails_is_told_and_the_next_one_looks_again() -> None:
    looks = 0

    async def check() -> dict[str, bool]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise OSError("no")
        return {}

    async def main() -> None:
        kept = Kept(check, limits.READY_KEPT_MS)
        with pytest.raises(OSError, match="no"):
            await kept.get()
        assert await kept.get() == {}

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_a_shard_whose_disk_hangs_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READY_TIMEOUT_MS", 200)
    monkeypatch.setattr(limits, "READY_PROBE_MS", 0)

    async def main() -> None:
        async with embedded(tmp_path / "data") as runtime:
            parts = await runtime.control_plane.ready()
            assert parts == dict.fromkeys(("c0", "d0", "account", "gatekeeper", "identity"), True)
            before = await commits(runtime)
            assert all((await runtime.control_plane.ready()).values())
            assert await commits(runtime) > before
            with holding_the_disk(tmp_path / "data" / "shards" / "d0.sqlite"):
                parts = await runtime.control_plane.ready()
                assert parts.pop("d0") is False
                assert all(parts.values())

    asyncio.run(main())


def test_who_can_not_read_tokens_is_not_ready_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READY_KEPT_MS", 0)
    monkeypatch.setattr(limits, "READY_TIMEOUT_MS", 300)
    readable = True
    snapshot = Identity.snapshot

    def told(self: Identity, known_generation: int) -> Any:
        if not readable:
            raise StoreFailed("no")
        return snapshot(self, known_generation)

    monkeypatch.setattr(Identity, "snapshot", told)

    async def main() -> None:
        nonlocal readable
        async with embedded(tmp_path / "data") as runtime:
            app = make_app(runtime.control_plane, tokens=TokenBook({"t": "default"}), version="0")
            async with HttpServer(app, SystemClock()) as server:
                assert all((await parts_of(server.url, "t")).values())
                assert await get(server.url, None) == (200, {"status": "ready"})
                readable = False
                assert await get(server.url, None) == (
                    503, {"status": "not ready", "reason": "tokens can't be read"},
                )  # fmt: skip
                for token in ("t", None):  # a registry's token is as good as none now
                    parts = await parts_of(server.url, token)
                    assert [part for part, is_up in parts.items() if not is_up] == ["identity"]
                    (found,) = judge_running(parts, {})
                    assert found.code == "tokens.unreadable"
                readable = True
                assert await get(server.url, None) == (200, {"status": "ready"})

    asyncio.run(main())


async def get(url: str, token: str | None) -> tuple[int, Any]:
    return await asyncio.to_thread(serving.get, f"{url}/readyz", token)


@contextmanager
def holding_the_disk(path: Path) -> Iterator[None]:
    """Another connection has the file's lock: commits wait for it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


async def commits(runtime: Any) -> int:
    ref = EntityRef(SHARD_INFO_KIND, "d0")
    return int((await runtime.router.call(ref, "statistics"))["store_commits"])
