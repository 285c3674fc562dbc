"""The main job: index a folder's Markdown documents, one workflow instance each.

    python examples/run_docs.py [--docs DIR] [--data DIR] [--embedded]

Starts the system on a local Ray (or in this process), makes an instance of `DocumentIndex` for
every document, approves the one that asks for it, waits for all, combines their entries to one
inverted index, and tries it with a search. Ends with 0 only if every instance is complete.

The data directory keeps the instances' journals (`store/`) and the results (`index/`); what an
interrupted run has acknowledged goes on with the next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

import docs_index
from docs_index import DOCUMENT_BYTES_MAX, Job, Report, combine, search, write_json
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from toque import ToqueError
from toque.api.client import Client, Instance, InstanceStatus
from toque.api.wiring import Runtime, start_embedded

DOCUMENTS_MAX = 500
DEPTH_MAX = 12
ROWS_SHOWN_MAX = 40
WORKFLOW = docs_index.DocumentIndex.name
SKIPPED_FOLDERS = {"node_modules", "build", "dist", "__pycache__", "venv"}
SEGMENT_ODD = re.compile(r"[^A-Za-z0-9_.:@~-]")
ID_CHARS_MAX = 200
APPROVER = "run_docs"
SAMPLE_QUERY = "what happens when a process dies"


@dataclass
class Found:
    """The documents to index, by path relative to the folder, and why others were left out."""

    names: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def find_documents(folder: Path) -> Found:
    """Markdown files below a folder: bounded in number, size and depth; links are not followed."""
    found = Found()
    for where, folders, files in os.walk(folder, followlinks=False):
        here = Path(where)
        depth = len(here.relative_to(folder).parts)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in SKIPPED_FOLDERS and depth < DEPTH_MAX
        )
        for name in sorted(files):
            path = here / name
            if path.suffix.lower() not in (".md", ".markdown"):
                continue
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file():
                found.left_out.append(f"{shown}: a link")
            elif path.stat().st_size > DOCUMENT_BYTES_MAX:
                found.left_out.append(f"{shown}: larger than {DOCUMENT_BYTES_MAX // 1024} KiB")
            elif len(found.names) >= DOCUMENTS_MAX:
                found.left_out.append(f"{shown}: past the first {DOCUMENTS_MAX}")
            else:
                found.names.append(shown)
    return found


def instance_id(run: str, name: str) -> str:
    """A path-like id for a document: the same name gives the same id, other names another.

    >>> instance_id("r1", "docs/errors.md")
    'r1/docs/errors.md'
    """
    segments = [SEGMENT_ODD.sub("-", segment) for segment in name.split("/")]
    segments = [s if s[0].isalnum() or s[0] == "_" else f"_{s}" for s in segments]
    made = "/".join([run, *segments])
    if made == f"{run}/{name}" and len(made) <= ID_CHARS_MAX:
        return made
    mark = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    return f"{made[:ID_CHARS_MAX].rstrip('/')}~{mark}"


# --- running ---


@dataclass
class Ran:
    """A document and what became of its instance."""

    job: Job
    instance: Instance
    status: InstanceStatus | None = None

    @property
    def complete(self) -> bool:
        """Whether its entry was written."""
        return self.status is not None and self.status.status == "complete"

    @property
    def seconds(self) -> float:
        """From the create to the end."""
        if self.status is None or self.status.end is None:
            return 0.0
        begin, end = map(datetime.fromisoformat, (self.status.created_on, self.status.end))
        return (end - begin).total_seconds()


async def create_all(
    client: Client, run: str, folder: Path, out: Path, names: list[str]
) -> list[Ran]:
    """One instance a document. The first document asks for an approval."""
    jobs = [
        Job(str(folder / name), name, str(out / "entries" / f"{name}.json"), needs_approval=not n)
        for n, name in enumerate(names)
    ]
    ids = {instance_id(run, job.name): job for job in jobs}
    made = await client.create_instances(
        WORKFLOW, [{"id": one, "params": asdict(job)} for one, job in ids.items()]
    )
    return [Ran(ids[one.id], client.instance(WORKFLOW, one.id)) for one in made]


async def approve(instance: Instance) -> None:
    """Wait until the instance asks, then say yes."""
    while not (status := await instance.status()).finished:
        if any(s.type == "waitForEvent" and not s.finished for s in status.steps):
            await instance.send_event("approve", {"by": APPROVER})
            return
        await asyncio.sleep(0.05)


async def finish(ran: Ran, progress: Progress, task: Any) -> None:
    """Approve if asked, wait for the end, and keep the record with its steps."""
    if ran.job.needs_approval:
        await approve(ran.instance)
    await ran.instance.wait()
    ran.status = await ran.instance.status()
    progress.advance(task)


async def run_all(
    client: Client, folder: Path, out: Path, names: list[str], console: Console, timeout: float
) -> list[Ran]:
    """Create, approve and await one instance a document, and show how far it is."""
    run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("documents", total=len(names))
        everything = await create_all(client, run, folder, out, names)
        work = [asyncio.ensure_future(finish(ran, progress, task)) for ran in everything]
        _, late = await asyncio.wait(work, timeout=timeout)
        for one in late:
            one.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
    for ran, result in zip(everything, results, strict=True):
        if isinstance(result, Exception):
            console.print(f"[red]{ran.job.name}[/]: {result}", highlight=False)
    return everything


# --- showing ---


def table_of(everything: list[Ran]) -> Table:
    """What ran, a line a document."""
    table = Table(title="What ran", title_justify="left", box=None, pad_edge=False)
    table.add_column("document", overflow="fold")
    table.add_column("status")
    for name in ("steps", "seconds", "sections", "links"):
        table.add_column(name, justify="right")
    for ran in everything[:ROWS_SHOWN_MAX]:
        status = ran.status
        if status is None:
            table.add_row(ran.job.name, "[yellow]not in time[/]", "", "", "", "")
            continue
        report = status.output_as(Report) if ran.complete else None
        told = f"[{'green' if ran.complete else 'red'}]{status.status}[/]"
        if report is not None and report.approved_by is not None:
            told += ", approved"
        table.add_row(
            ran.job.name,
            told,
            str(len(status.steps)),
            f"{ran.seconds:.2f}",
            "" if report is None else str(report.sections),
            "" if report is None else str(report.links),
        )
    return table


def show_search(console: Console, index: dict[str, Any], query: str | None) -> None:
    """Try the index: with the given query, or one that finds something."""
    asked = query or SAMPLE_QUERY
    hits = search(index, asked)
    if not hits and query is None and index["documents"]:
        asked = index["documents"][0]["title"]
        hits = search(index, asked)
    console.print(f"\nSearch for [bold]{asked}[/]:", highlight=False)
    for hit in hits:
        place = f"{hit['name']}:{hit['line']}"
        console.print(f"  {hit['score']:5.1f}  {place}  {hit['section']}", highlight=False)
    if not hits:
        console.print("  nothing found")


def build_index(everything: list[Ran], out: Path) -> dict[str, Any]:
    """Combine the entries of this run's documents and write the whole index."""
    entries = [
        json.loads(Path(ran.job.entry).read_text(encoding="utf-8"))
        for ran in everything
        if ran.complete
    ]
    index: dict[str, Any] = combine(entries)
    write_json(out / "index.json", index)
    return index


# --- the command ---


def started(store: Path, *, embedded: bool) -> AbstractAsyncContextManager[Runtime]:
    """A runtime with the workflow of `docs_index.py`, on a local Ray or in this process."""
    start = start_embedded if embedded else import_module("toque.api.wiring_ray").start_ray
    runtime: AbstractAsyncContextManager[Runtime] = start(store, app_path=docs_index.__file__)
    return runtime


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Index Markdown documents with toque.")
    parser.add_argument("--docs", type=Path, default=Path(), help="folder (default: here)")
    parser.add_argument("--data", type=Path, default=Path(".toque/docs"), help="data directory")
    parser.add_argument("--embedded", action="store_true", help="in this process, without Ray")
    parser.add_argument("--query", help="what to search for at the end")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait at most")
    return parser.parse_args(words)


async def main(words: Sequence[str], console: Console) -> int:
    """Run the job; the exit code."""
    given = arguments(words)
    folder, data = given.docs.resolve(), given.data.resolve()
    if not folder.is_dir():
        console.print(f"{given.docs} is no folder.")
        return 2
    found = find_documents(folder)
    for told in found.left_out:
        console.print(f"left out {told}", highlight=False)
    if not found.names:
        console.print(f"There are no Markdown documents in {given.docs}.")
        return 2
    how = "in this process" if given.embedded else "on a local Ray"
    console.print(f"{len(found.names)} documents; starting toque {how} ...", highlight=False)
    out = data / "index"
    async with started(data / "store", embedded=given.embedded) as runtime:
        shards = runtime.placement.names()
        what = "shards" if given.embedded else "shards, each a Ray actor"
        console.print(f"{len(shards)} {what}: {', '.join(shards)}", highlight=False)
        everything = await run_all(
            runtime.client(), folder, out, found.names, console, given.timeout
        )
    index = build_index(everything, out)
    console.print(table_of(everything))
    if len(everything) > ROWS_SHOWN_MAX:
        console.print(f"... and {len(everything) - ROWS_SHOWN_MAX} more")
    for ran in everything:
        if ran.status is not None and ran.status.error is not None:
            error = ran.status.error
            console.print(f"{ran.job.name}: {error.name}: {error.message}", highlight=False)
    show_search(console, index, given.query)
    console.print(f"\nThe index is {out / 'index.json'}", soft_wrap=True, highlight=False)
    complete = sum(ran.complete for ran in everything)
    console.print(f"{complete} of {len(found.names)} complete")
    return 0 if complete == len(found.names) else 1


def run(words: Sequence[str]) -> int:
    """Run the job from the command line: faults of the caller and the system are one sentence."""
    console = Console()
    try:
        return asyncio.run(main(words, console))
    except ToqueError as error:
        console.print(f"[red]{error.code}[/]: {error}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
