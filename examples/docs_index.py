"""A workflow that indexes one Markdown document, and the search over the index it builds.

`DocumentIndex` reads a file, splits it into sections, extracts its links, and writes an entry of
a search index: one JSON file a document, replaced atomically. All its steps may be repeated
without harm, which is what a step must bear: a step whose result was not recorded runs again.
A document whose params say so waits for an `approve` event before its entry is written.

Params: see `Job`. A file that is missing, too large or no UTF-8 fails the instance at once; there
is no use in trying again.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from toque import NonRetryableError, StepContext, WorkflowEntrypoint, WorkflowEvent, WorkflowStep

DOCUMENT_BYTES_MAX = 256 * 1024
LINKS_MAX = 2_000
QUICK = {"retries": {"limit": 3, "delay": "200 ms"}, "timeout": "30 seconds"}
TERM = re.compile(r"[a-z0-9][a-z0-9_]+")
Section = dict[str, Any]
Link = dict[str, str]


@dataclass
class Job:
    """The params of an instance; `event.payload` arrives as this type."""

    path: str
    name: str
    entry: str
    needs_approval: bool = False


@dataclass
class Report:
    """What an instance gives back."""

    name: str
    title: str
    sections: int
    links: int
    entry_bytes: int
    approved_by: str | None = None


class DocumentIndex(WorkflowEntrypoint):
    """Index one document."""

    name = "document-index"

    async def run(self, event: WorkflowEvent[Job], step: WorkflowStep) -> Report:
        job = event.payload

        # A plain function runs in a thread. What it returns is kept, and is there after a crash.
        text = await step.do("read", lambda: read_document(job.path), QUICK)

        # Two steps at once: tasks are replayed in the order in which they ended first.
        sections, links = await asyncio.gather(
            step.do("split into sections", lambda: split_sections(text)),
            step.do("extract links", lambda: extract_links(text)),
        )
        approved_by = None
        if job.needs_approval:
            # Holds neither a slot nor memory while it waits.
            approval = await step.wait_for_event("approval", "approve", timeout="1 hour")
            approved_by = str(approval.payload["by"])

        title = title_of(sections, job.name)

        # A coroutine function runs on an event loop; `ctx` tells which attempt this is.
        async def write(ctx: StepContext) -> int:
            entry = {"name": job.name, "title": title, "sections": sections, "links": links}
            return await asyncio.to_thread(write_json, job.entry, entry)

        size = await step.do("write the entry", write, QUICK)
        return Report(job.name, title, len(sections), len(links), size, approved_by)


# --- reading Markdown (pure) ---


def parse(text: str) -> list[Token]:
    """The document's tokens: CommonMark and tables."""
    return MarkdownIt("commonmark").enable("table").parse(text)


def terms_of(text: str) -> Counter[str]:
    """How often each word occurs."""
    return Counter(TERM.findall(text.lower()))


def split_sections(text: str) -> list[Section]:
    """The parts between headings: title, level, first line, and how often each word occurs."""
    lines = text.splitlines()
    tokens = parse(text)
    starts = [(0, 0, "")]
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.map is not None:
            starts.append((token.map[0], int(token.tag[1:]), tokens[index + 1].content))
    sections = []
    ends = [start for start, _, _ in starts[1:]] + [len(lines)]
    for (start, level, title), end in zip(starts, ends, strict=True):
        terms = terms_of("\n".join(lines[start:end]))
        if terms:
            sections.append(
                {"title": title, "level": level, "line": start + 1, "terms": dict(terms)}
            )
    return sections


def extract_links(text: str) -> list[Link]:
    """All links and images, each with its target and whether it leads out of the document set."""
    links: list[Link] = []
    for token in parse(text):
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                outside = re.match(r"[a-z][a-z0-9+.-]*:", str(target), re.IGNORECASE)
                links.append({"target": str(target), "kind": "outside" if outside else "inside"})
    return links[:LINKS_MAX]


def title_of(sections: list[Section], name: str) -> str:
    """The first heading; the document's name if it has none."""
    return next((section["title"] for section in sections if section["title"]), name)


# --- files ---


def read_document(path: str) -> str:
    """The text of a file of at most `DOCUMENT_BYTES_MAX` bytes.

    Raises:
        NonRetryableError: it is not there, too large, or no UTF-8: no use in trying again.
        OSError: it can't be read just now.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(DOCUMENT_BYTES_MAX + 1)
        text = raw.decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
        raise NonRetryableError(f"{path}: {error}") from error
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise NonRetryableError(f"{path} has more than {DOCUMENT_BYTES_MAX} bytes")
    return text


def write_json(path: str | Path, value: object) -> int:
    """Replace a file by a value's JSON, so that a reader sees the old or the new one whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True).encode()
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    return len(raw)


# --- the whole index (pure but for reading) ---


def combine(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """One inverted index of all entries: word -> [[document number, section number, count]]."""
    documents: list[dict[str, Any]] = []
    postings: dict[str, list[list[int]]] = {}
    for number, entry in enumerate(sorted(entries, key=lambda entry: entry["name"])):
        documents.append(
            {
                "name": entry["name"],
                "title": entry["title"],
                "sections": [[s["title"], s["line"]] for s in entry["sections"]],
                "links": len(entry["links"]),
            }
        )
        for position, section in enumerate(entry["sections"]):
            for word, count in section["terms"].items():
                postings.setdefault(word, []).append([number, position, count])
    return {"documents": documents, "terms": postings}


def search(index: dict[str, Any], query: str, hits_max: int = 5) -> list[dict[str, Any]]:
    """The sections that fit best: those with most of the query's words, rare words first."""
    section_count = sum(len(document["sections"]) for document in index["documents"])
    scores: dict[tuple[int, int], float] = {}
    for word in terms_of(query):
        found = index["terms"].get(word, [])
        rarity = math.log(1 + section_count / max(1, len(found)))
        for number, position, count in found:
            score = rarity * (1 + math.log(count))
            scores[number, position] = scores.get((number, position), 0.0) + score
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:hits_max]
    hits = []
    for (number, position), score in best:
        document = index["documents"][number]
        title, line = document["sections"][position]
        hits.append({"name": document["name"], "section": title, "line": line, "score": score})
    return hits
