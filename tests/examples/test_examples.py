"""Every example runs, over the embedded runtime, and does what its docstring says."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

import toque

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Load = Callable[[str], ModuleType]


async def test_hello(load: Load, tmp_path: Path) -> None:
    assert await load("hello").main(tmp_path, "ada") == "Hello, Ada!"


async def test_retries(load: Load, tmp_path: Path) -> None:
    quotes, attempts = await load("retries").main(tmp_path)
    assert quotes.prices == {"swift": 12.5}
    assert quotes.refusals == {
        "cheap": "down for maintenance",
        "grand": "the parcel is too heavy",
    }
    assert attempts == {"ask swift-1": 3, "ask cheap-1": 3, "ask grand-1": 1}


async def test_approval(load: Load, tmp_path: Path) -> None:
    told = await load("approval").main(tmp_path)
    assert told == ["bought pen", "bought desk", "refused by Kim", "nobody answered"]


async def test_entity(load: Load, tmp_path: Path) -> None:
    votes, continued = await load("entity").main(tmp_path)
    assert votes == {"ada": 4, "bob": 2, "cleo": 1}
    assert continued == 2


async def test_saga(load: Load, tmp_path: Path) -> None:
    told = await load("saga").main(tmp_path)
    assert told[:6] == [
        "off to Rome",
        "the card is stolen",
        "rollback complete",
        "terminated: Cancelled; sorry, no Bergen",
        "paused",
        "off to Bergen",
    ]
    assert told[6:] == ["no charge", "give back flight in Oslo", "give back hotel in Oslo"]


async def test_children(load: Load, tmp_path: Path) -> None:
    found, pages, watcher = await load("children").main(tmp_path)
    assert found == {"index": 4, "a": 4, "refused: Forbidden": 0, "b": 4}
    assert pages == ["complete"] * 3 + ["errored"]
    assert watcher == "Cancelled"


async def test_stream(load: Load, tmp_path: Path) -> None:
    size = sum(len(f'{{"order": {number}}}\n') for number in range(50_000))
    assert await load("stream").main(tmp_path, 50_000) == (50_000, size)


async def test_durable_object(load: Load, tmp_path: Path) -> None:
    assert await load("durable_object").main(tmp_path) == (100, 5)


async def run_docs(load: Load, *words: object) -> tuple[int, str]:
    """The documents job, embedded: its exit code and what it printed."""
    load("docs_index")
    console = Console(file=io.StringIO(), width=120)
    code = await load("run_docs").main(["--embedded", *map(str, words)], console)
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    return code, printed


async def test_the_documents_job(load: Load, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "a.md").write_text("# Whales\n\nThey sing. [b](sub/b.md)\n")
    (docs / "sub" / "b.md").write_text("# Owls\n\nThey watch.\n\n## Night\n\nThey hunt.\n")
    for _ in range(2):  # again on the same data directory: other instances, same index
        code, printed = await run_docs(load, "--docs", docs, "--data", tmp_path / "data")
        assert code == 0, printed
        assert "2 of 2 complete" in printed
        assert "approved" in printed
    index = json.loads((tmp_path / "data" / "index" / "index.json").read_text())
    assert [d["name"] for d in index["documents"]] == ["a.md", "sub/b.md"]
    assert index["documents"][0]["links"] == 1
    assert (tmp_path / "data" / "index" / "entries" / "sub" / "b.md.json").exists()


async def test_the_documents_job_says_what_failed(load: Load, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "good.md").write_text("# Good\n")
    (docs / "bad.md").write_bytes(b"\xff\xfe")
    code, printed = await run_docs(load, "--docs", docs, "--data", tmp_path / "data")
    assert code == 1
    assert "1 of 2 complete" in printed
    assert "NonRetryableError" in printed


async def test_a_data_directory_in_use_is_told_in_a_sentence(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("# A\n")
    words = ["--embedded", "--docs", str(tmp_path), "--data", str(tmp_path / "data")]
    async with toque.embedded(tmp_path / "data" / "store"):
        load("docs_index")
        run = load("run_docs").run
        assert await asyncio.to_thread(run, words) == 1
    assert "datadir.in_use" in capsys.readouterr().out


@pytest.mark.cluster
def test_the_documents_job_on_ray(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("a", "b", "c"):
        (docs / f"{name}.md").write_text(f"# {name}\n\nWords.\n")
    command = [sys.executable, str(EXAMPLES / "run_docs.py"), "--docs", str(docs)]
    done = subprocess.run(
        [*command, "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "each a Ray actor" in done.stdout
    assert "3 of 3 complete" in done.stdout


@pytest.mark.cluster
def test_resource_step(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "resource_step.py")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        timeout=100,
        check=True,
    )
    made = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    film, studio = made["film"], made["studio"]
    assert [frame["frame"] for frame in film["frames"]] == [0, 1, 2]
    assert film["title"] == "Whales"
    assert film["shard"] not in {frame["process"] for frame in film["frames"]}
    where, before, after = studio
    assert where == "B"
    assert len({before, after, film["shard"]}) == 3, "the break gave the actor up"


@pytest.mark.parametrize("docs", ["empty", "missing"])
async def test_no_documents_is_an_error(load: Load, tmp_path: Path, docs: str) -> None:
    (tmp_path / "empty").mkdir()
    code, _ = await run_docs(load, "--docs", tmp_path / docs, "--data", tmp_path / "data")
    assert code == 2
    assert not (tmp_path / "data").exists()
