"""Every example runs, over the embedded runtime, and does what its docstring says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

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


@pytest.mark.parametrize("docs", ["empty", "missing"])
async def test_no_documents_is_an_error(load: Load, tmp_path: Path, docs: str) -> None:
    (tmp_path / "empty").mkdir()
    code, _ = await run_docs(load, "--docs", tmp_path / docs, "--data", tmp_path / "data")
    assert code == 2
    assert not (tmp_path / "data").exists()
