"""Workflows for tests with workers: they tell their process, and misbehave when told to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import toque


class Apart(toque.WorkflowEntrypoint):
    """Each instance in a process of its own."""

    placement = "actor"

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        first = await step.do("first", os.getpid)
        both = await asyncio.gather(step.do("a", lambda: 1), step.do("b", one))
        await step.sleep("rest", 0.1)
        heard = await step.wait_for_event("hear", "word")
        words = [heard.payload]
        for _ in range(event.payload):
            words.append((await step.wait_for_event("more", "word")).payload)
        return {
            "pids": [first, await step.do("last", os.getpid)],
            "run": os.getpid(),
            "both": both,
            "words": words,
        }


async def one() -> int:
    return 1


class Held(toque.WorkflowEntrypoint):
    """Its first attempt is held until its process is killed, the next until it may go."""

    placement = "actor"

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        folder = Path(event.payload)

        def held(ctx: toque.StepContext) -> int:
            if ctx.attempt == 1:
                folder.joinpath("began").write_text(str(os.getpid()))
            folder.joinpath("go").read_text()  # a pipe: waits for who writes
            return os.getpid()

        return await step.do("held", held)


class Where(toque.WorkflowEntrypoint):
    """Tells the processes of `run` and of a body."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        return [os.getpid(), await step.do("where", os.getpid)]


class Ending(toque.WorkflowEntrypoint):
    """Ends its process in `run`, just after a step with a large result, `times` times."""

    placement = "actor"

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        folder, times = event.payload
        ends = Path(folder, "ends")

        def body() -> str:
            with Path(folder, "bodies").open("a") as file:
                file.write(f"{os.getpid()}\n")
            return "x" * 900_000

        size = len(await step.do("large", body, config={"retries": {"limit": 0}}))
        with ends.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if len(ends.read_text().split()) <= times:
            os._exit(1)
        return size


class Poison(toque.WorkflowEntrypoint):
    """Ends or blocks its process, as the payload says, `times` times.

    If there is a pipe `poisoning`, whoever reads it is told just before the first time.
    """

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        how, folder, times = event.payload
        began, poisoning = Path(folder, "began"), Path(folder, "poisoning")

        def note() -> bool:
            with began.open("a") as file:
                file.write(f"{os.getpid()}\n")
            count = len(began.read_text().split())
            if count == 1 and poisoning.exists():
                poisoning.write_text("now")  # waits for the reader
            return count <= times

        def in_thread() -> int:
            if note():
                os._exit(1)
            return os.getpid()

        async def exits() -> int:
            await asyncio.sleep(0)
            if note():
                os._exit(1)
            return os.getpid()

        async def inner() -> int:
            return (await asyncio.gather(asyncio.sleep(0), exits()))[1]

        async def blocks() -> int:
            while note():
                while True:
                    pass
            return os.getpid()

        if how == "run" and note():
            os._exit(1)
        bodies = {"thread": in_thread, "async": exits, "inner": inner, "loop": blocks}
        return await step.do("it", bodies.get(how, os.getpid))


def work_in(folder: str, ctx: toque.StepContext) -> int:
    """Tells its process through one pipe and goes on at a word from another."""
    if ctx.attempt < 3:
        Path(folder, "began").write_text(str(os.getpid()))
        Path(folder, "go").read_text()
    return os.getpid()


class Heavy(toque.WorkflowEntrypoint):
    """A body that needs resources; its argument is another step's result."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        options = {"num_cpus": 1, **event.payload.get("options", {})}

        @step.do("folder")
        def folder() -> str:
            return str(event.payload["folder"])

        @step.do("heavy", ray_options=options)
        def heavy(folder: str, ctx: toque.StepContext) -> int:
            return work_in(folder, ctx)

        return [os.getpid(), await heavy]


def numbers() -> Iterator[bytes]:
    """A stream of some parts."""
    for number in range(100_000):
        yield b"%d\n" % number


async def numbers_async() -> AsyncIterator[bytes]:
    """The same, by an asynchronous generator."""
    for part in numbers():
        yield part


def lines_of(stream: toque.Stream) -> list[int]:
    """How many lines a stream has, and the process that looked."""
    return [sum(part.count(b"\n") for part in stream), os.getpid()]


class Streaming(toque.WorkflowEntrypoint):
    """Streams made and read in a process of its own."""

    placement = "actor"

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        made = await step.do("made", numbers)
        await step.sleep("rest", 0.05)  # the process that wrote it ends
        again = await step.do("again", numbers_async)
        return [await step.do("lines", partial(lines_of, one)) for one in (made, again)]


class StreamingTasks(toque.WorkflowEntrypoint):
    """The same by tasks, and by the shard's own process."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        half = {"num_cpus": 0.5}
        made = await step.do("made", numbers, ray_options=half)
        again = await step.do("again", numbers_async, ray_options=half)
        return [
            await step.do("lines", partial(lines_of, made), ray_options=half),
            await step.do("lines", partial(lines_of, again)),
        ]


class Clinging(toque.WorkflowEntrypoint):
    """A body that closes over what can't be sent."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        return await step.do("cling", lambda: repr(step), ray_options={"num_cpus": 1})


class Undone(toque.WorkflowEntrypoint):
    """Writes down what it does, undoes and cleans up, with its process."""

    placement = "actor"

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        path = Path(event.payload)

        def told(what: str) -> None:
            with path.open("a") as file:
                file.write(f"{what} {os.getpid()}\n")

        def undo(ctx: toque.StepContext, error: Exception, output: Any) -> None:
            told(f"undo-{ctx.step}-{output}-{error}")

        await step.do("first", lambda: told("first"), rollback=undo)
        try:
            heard = await step.wait_for_event("hear", "word")
        except asyncio.CancelledError:
            async with step.shield():
                await step.do("clean", lambda: told("clean"))
            raise
        await step.do("second", lambda: told("second"), rollback=undo)
        if heard.payload == "fail":
            raise ValueError("no")
        return heard.payload
