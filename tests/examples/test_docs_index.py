"""The pure parts of the documents job: Markdown, the index, what is found on disk, ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from toque import NonRetryableError
from toque.runtime.ids import check_instance_id

TEXT = """# Guide

Words about whales. [home](README.md) and <https://example.org/x>.

```md
# not a heading, [not a link](x)
```

## Whales

Whales, whales. ![picture](whale.png "A whale")

Setext
------

| a | b |
| --- | --- |
| [cell](cell.md#part) | owls |
"""


@pytest.fixture
def docs_index(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("docs_index")


@pytest.fixture
def run_docs(docs_index: ModuleType, load: Callable[[str], ModuleType]) -> ModuleType:
    return load("run_docs")


def test_sections_are_split_at_headings(docs_index: ModuleType) -> None:
    sections = docs_index.split_sections(TEXT)
    told = [(s["title"], s["level"], s["line"]) for s in sections]
    assert told == [("Guide", 1, 1), ("Whales", 2, 9), ("Setext", 2, 13)]
    assert sections[1]["terms"]["whales"] == 3
    assert docs_index.title_of(sections, "x.md") == "Guide"
    assert docs_index.title_of([], "x.md") == "x.md"


@pytest.mark.parametrize("text", ["", "\n\n", "---", "no heading here", "# \n"])
def test_odd_documents_are_split_too(docs_index: ModuleType, text: str) -> None:
    sections = docs_index.split_sections(text)
    assert [s["title"] for s in sections] == ([""] if "no heading" in text else [])


def test_links_of_text_images_and_tables(docs_index: ModuleType) -> None:
    assert docs_index.extract_links(TEXT) == [
        {"target": "README.md", "kind": "inside"},
        {"target": "https://example.org/x", "kind": "outside"},
        {"target": "whale.png", "kind": "inside"},
        {"target": "cell.md#part", "kind": "inside"},
    ]


def test_search_finds_the_section(docs_index: ModuleType) -> None:
    entries = [
        {
            "name": name,
            "title": name,
            "sections": docs_index.split_sections(text),
            "links": docs_index.extract_links(text),
        }
        for name, text in (("b.md", TEXT), ("a.md", "# Birds\n\nOwls and words."))
    ]
    index = docs_index.combine(entries)
    assert [d["name"] for d in index["documents"]] == ["a.md", "b.md"]
    best = docs_index.search(index, "Whales")[0]
    assert (best["name"], best["section"], best["line"]) == ("b.md", "Whales", 9)
    assert docs_index.search(index, "unicorn") == []
    assert docs_index.combine([]) == {"documents": [], "terms": {}}


def test_reading_refuses_what_is_too_large_or_no_text(
    docs_index: ModuleType, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_bytes(b"x" * docs_index.DOCUMENT_BYTES_MAX)
    assert len(docs_index.read_document(str(page))) == docs_index.DOCUMENT_BYTES_MAX
    page.write_bytes(b"x" * (docs_index.DOCUMENT_BYTES_MAX + 1))
    with pytest.raises(NonRetryableError, match="more than"):
        docs_index.read_document(str(page))
    page.write_bytes(b"\xff")
    with pytest.raises(NonRetryableError, match="utf-8"):
        docs_index.read_document(str(page))
    with pytest.raises(NonRetryableError, match="No such file"):
        docs_index.read_document(str(tmp_path / "missing.md"))


def test_writing_replaces_whole_files(docs_index: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "entry.json"
    docs_index.write_json(target, {"b": 1, "a": "é"})
    docs_index.write_json(target, {"a": 2})
    assert json.loads(target.read_text()) == {"a": 2}
    with pytest.raises(TypeError):
        docs_index.write_json(target, {"a": object()})
    assert [p.name for p in target.parent.iterdir()] == ["entry.json"]


def test_finding_is_bounded_and_follows_no_links(
    run_docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("# Secret\n")
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("b.md", "a.MD", "sub/c.markdown", ".hidden/d.md", "e.txt"):
        (folder / name).write_text("# Title\n")
    (folder / "link.md").symlink_to(outside / "secret.md")
    (folder / "linked").symlink_to(outside)
    (folder / "large.md").write_bytes(b"x" * 300_000)
    found = run_docs.find_documents(folder)
    assert found.names == ["a.MD", "b.md", "sub/c.markdown"]
    assert [told.split(":")[0] for told in found.left_out] == ["large.md", "link.md"]
    monkeypatch.setattr(run_docs, "DOCUMENTS_MAX", 2)
    assert len(run_docs.find_documents(folder).names) == 2


def test_ids_are_valid_and_differ(run_docs: ModuleType) -> None:
    names = [
        "README.md",
        "docs/a b.md",
        "docs/a-b.md",
        "docs/a+b.md",
        "-x/.y/ü.md",
        "..a/b.md",
        "d/" * 150 + "x.md",
        "d/" * 151 + "x.md",
        "bad\udcff.md",
    ]
    made = [run_docs.instance_id("r1", name) for name in names]
    assert made[0] == "r1/README.md"
    assert len(set(made)) == len(names)
    assert [check_instance_id(made_id) for made_id in made] == made
    assert made == [run_docs.instance_id("r1", name) for name in names]
