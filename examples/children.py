"""Children: a folder's sync starts one instance for each page, and waits for them.

    python examples/children.py

Each page is an instance of its own, with its own journal, in its own workflow's queue; the folder
holds neither a slot nor memory while it waits. A page that fails is an exception in `run`. When a
folder's run is over, however that comes, what it started and did not wait for is cancelled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import toque


@dataclass
class Page:
    """The params of a page, and what it gives: its name and its number of words."""

    name: str
    words: int = 0


class SyncPage(toque.WorkflowEntrypoint):
    """Reads one page, and counts its words."""

    async def run(self, event: toque.WorkflowEvent[Page], step: toque.WorkflowStep) -> Page:
        name = event.payload.name

        def read() -> str:
            if name == "secret":
                raise toque.NonRetryableError("nobody may read it", "Forbidden")
            return f"the words of {name}"

        text = await step.do("read", read)
        return Page(name, len(text.split()))


class Watch(toque.WorkflowEntrypoint):
    """Waits for news of a folder, for ever: it ends with who started it."""

    async def run(self, event: toque.WorkflowEvent[str], step: toque.WorkflowStep) -> None:
        async for _ in step.events("changed"):
            pass


class SyncFolder(toque.WorkflowEntrypoint):
    """All pages of a folder at once."""

    async def run(
        self, event: toque.WorkflowEvent[list[str]], step: toque.WorkflowStep
    ) -> dict[str, int]:
        await step.start_child("watch", Watch, "folder")
        first = await step.start_child("page", SyncPage, Page("index"))  # it exists from here on
        others = [step.run_child("page", SyncPage, Page(name)) for name in event.payload]
        results = await asyncio.gather(first.result(), *others, return_exceptions=True)
        found: dict[str, int] = {}
        for result in results:
            if isinstance(result, toque.ChildFailed):
                found[f"refused: {result.data['error']['name']}"] = 0
            elif isinstance(result, BaseException):
                raise result
            else:
                found[result.name] = result.words
        return found


async def main(data: Path) -> tuple[dict[str, int], list[str], str]:
    """What a folder found, the statuses of its pages, and what became of its watcher."""
    async with toque.embedded(data, [SyncFolder, SyncPage, Watch]) as runtime:
        client = runtime.client()
        names = ["a", "secret", "b"]
        folder = await client.create_instance("SyncFolder", "folder-7", names, wait=30)
        found: dict[str, int] = (await folder.wait()).output_as(dict[str, int])
        pages = [
            line.status async for line in client.list_instances("SyncPage", prefix="folder-7/")
        ]
        watchers = [line.id async for line in client.list_instances("Watch")]
        watcher = await client.instance("Watch", watchers[0]).wait()
    return found, sorted(pages), watcher.error.name if watcher.error else watcher.status


if __name__ == "__main__":
    print(*asyncio.run(main(Path(".toque/children"))), sep="\n")
