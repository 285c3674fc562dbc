"""A store that lacks what it acknowledged: its shard stays closed, and an operator may go on."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import toque
from toque.api import cli_doctor
from toque.api.cli import app
from toque.runtime.datadir import store_path
from toque.runtime.errors import ShardUnavailable
from toque.runtime.pages import sums_path
from toque.runtime.pages_sqlite import changing
from toque.runtime.schema_sqlite import STORE_FORMAT

SHARDS = ("d0", "d1")
IDS = [f"i{number}" for number in range(24)]


@toque.workflow
async def ask(event: Any, step: Any) -> Any:
    answer = await step.wait_for_event("ask", "answer", timeout="1 hour")
    return answer.payload


def shard_of(data: Path, instance: str) -> str:
    """The shard in whose store an instance is."""
    for shard in SHARDS:
        with closing(
            sqlite3.connect(f"{store_path(data, shard).as_uri()}?mode=ro", uri=True)
        ) as db:
            sql = "SELECT 1 FROM instances WHERE entity LIKE '%/' || ?"
            if db.execute(sql, (instance,)).fetchone():
                return shard
    raise AssertionError(instance)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped directory of two data shards; `older` has what d0 had before the answers came."""
    folder = tmp_path_factory.mktemp("stale")

    async def main() -> None:
        async with toque.embedded(folder / "data", [ask], data_shards=2) as runtime:
            for id in IDS:
                await runtime.client().create_instance("ask", id)
        shutil.copy(store_path(folder / "data", "d0"), folder / "older")
        async with toque.embedded(folder / "data", [ask]) as runtime:
            some = [[id for id in IDS if shard_of(folder / "data", id) == one] for one in SHARDS]
            answered = [*some[0][:3], *some[1][:3]]
            (folder / "data" / "answered.json").write_text(json.dumps(answered))
            for id in answered:
                await runtime.client().instance("ask", id).send_event("answer", id)
                assert (await runtime.client().instance("ask", id).wait(30)).output == id

    asyncio.run(main())
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """That directory, with the older copy of d0 put back."""
    shutil.copytree(made / "data", tmp_path / "data")
    shutil.copy(made / "older", store_path(tmp_path / "data", "d0"))
    return tmp_path / "data"


def answered_of(data: Path) -> list[str]:
    """Those that had ended before the older copy was put back, some in each shard."""
    return list(json.loads((data / "answered.json").read_text()))


def refused(words: list[str]) -> str:
    """What a command says that can't be done."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    return " ".join(done.stderr.split())


def codes(data: Path, *, notes: bool) -> set[str]:
    return {each.code for each in cli_doctor.look_at(data, fix=False) if each.note is notes}


async def test_a_shard_with_an_older_store_stays_closed_and_the_others_go_on(data: Path) -> None:
    before = store_path(data, "d0").read_bytes()
    answered = answered_of(data)
    waiting = {shard_of(data, id): id for id in IDS if id not in answered}
    async with toque.embedded(data, [ask]) as runtime:
        client = runtime.client()
        with pytest.raises(ShardUnavailable, match="older copy") as told:
            await client.instance("ask", waiting["d0"]).status()
        assert "d0 stays closed" in str(told.value)
        assert "--accept-loss d0" in str(told.value)
        await client.instance("ask", waiting["d1"]).send_event("answer", "yes")
        assert (await client.instance("ask", waiting["d1"]).wait(30)).output == "yes"
    assert store_path(data, "d0").read_bytes() == before


def test_the_loss_can_be_accepted_and_is_recorded(data: Path) -> None:
    assert codes(data, notes=False) == {"store.stale"}
    command = ["doctor", "--data", str(data), "--accept-loss", "d0"]
    done = CliRunner().invoke(app, command)
    assert "accepted for shard d0: commit " in done.stderr
    assert "older copy" in done.stderr
    assert "store.stale" not in codes(data, notes=False)
    assert "store.loss" in codes(data, notes=True)
    assert "lacks nothing" in refused(command)

    answered = answered_of(data)
    lost = [id for id in answered if shard_of(data, id) == "d0"]
    assert len(lost) == 3

    async def main() -> None:
        async with toque.embedded(data, [ask]) as runtime:
            client = runtime.client()
            for id in IDS:  # those that had ended on d0 wait again
                status = (await client.instance("ask", id).status()).status
                assert (status == "complete") is (id in answered and id not in lost), id
            await client.instance("ask", lost[0]).send_event("answer", "again")
            assert (await client.instance("ask", lost[0]).wait(30)).output == "again"

    asyncio.run(main())
    assert codes(data, notes=False) == set()
    assert "store.loss" in codes(data, notes=True)


def test_a_damaged_page_closes_its_shard_and_can_be_accepted(made: Path, tmp_path: Path) -> None:
    data = shutil.copytree(made / "data", tmp_path / "data")
    path = store_path(data, "d0")
    content = bytearray(path.read_bytes())
    at = content.index(b"ask", len(content) // 2)  # inside of a row
    content[at] ^= 0x20
    path.write_bytes(content)
    sums = sums_path(path).read_bytes()

    async def main() -> None:
        async with toque.embedded(data, [ask]) as runtime:
            ids = {shard_of(data, id): id for id in IDS}
            with pytest.raises(ShardUnavailable, match="not as written"):
                await runtime.client().instance("ask", ids["d0"]).status()
            assert await runtime.client().instance("ask", ids["d1"]).status()

    asyncio.run(main())
    assert (path.read_bytes(), sums_path(path).read_bytes()) == (content, sums)
    assert codes(data, notes=False) == {"store.damaged"}
    command = ["doctor", "--data", str(data), "--accept-loss", "d0"]
    assert f"page {at // 4096 + 1} is not as written" in CliRunner().invoke(app, command).stderr
    assert "store.damaged" not in codes(data, notes=False)
    assert "store.loss" in codes(data, notes=True)
    assert "lacks nothing" in refused(command)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--accept-loss", "d1"], "lacks nothing"),
        (["--accept-loss", "d7"], "there is no shard 'd7'"),
    ],
)
def test_no_other_loss_can_be_accepted(data: Path, words: list[str], match: str) -> None:
    before = store_path(data, "d0").read_bytes()
    assert match in refused(["doctor", "--data", str(data), *words])
    assert store_path(data, "d0").read_bytes() == before


def test_a_loss_is_accepted_in_a_directory_only() -> None:
    assert "name it with --data" in refused(["doctor", "--accept-loss", "d0"])


def test_formats_are_shown(data: Path) -> None:
    done = CliRunner().invoke(app, ["formats", "--data", str(data), "-o", "json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["newest"]["store"] == STORE_FORMAT
    assert [each["format"] for each in told["found"]] == [told["newest"]["directory"]] + 3 * [
        STORE_FORMAT
    ]
    assert {each["runs"] for each in told["upgrades"]} == {"before"}
    table = CliRunner().invoke(app, ["formats"]).stdout
    assert "commits form a chain" in table
    with changing(store_path(data, "d1")) as store:
        store.execute("UPDATE shard SET format = ?", (STORE_FORMAT + 1,))
    newer = CliRunner().invoke(app, ["formats", "--data", str(data)])
    assert newer.exit_code == 1
    assert "use the version that wrote it" in " ".join(newer.stdout.split())
    assert "no data directory" in refused(["formats", "--data", str(data / "shards")])
