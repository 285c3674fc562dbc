"""Random workflows: programs of steps, waits and asyncio constructs, and how they are played.

A program is a tree that a seed gives; `run` walks it and notes every outcome and branch in a
trace. What the world does (which body ends next and how, when time passes, which event comes) a
second seed draws. Every turn's rows, events and trace are kept, so that a crash after any of them
can be played: the replay must note the same trace, and so must a replay of all of what follows.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tests.engines.play import Play
from toque.engines.failures import NO_DELAY, NonRetryableError, RecordedError
from toque.engines.journal import Journal, record_from_row
from toque.engines.replay import Execution
from toque.engines.step import WorkflowStep

Node = tuple[Any, ...]
EVENT_TYPES = ("go", "stop")
NAMES = ("a", "b", "c")
ACTS_MAX = 250
DEPTH_MAX = 4
SPOILT = Random(0)
"""Never the same twice: for the deliberate fault."""


def nothing() -> Any:
    """A body; the test decides how it ends."""


# --- programs -------------------------------------------------------------------------------------


def program(rng: Random, depth: int = 0) -> Node:
    """A random tree of things to do."""
    leaves = ("do", "do", "do", "fragile", "told", "hurried", "sleep", "wait", "taken", "pause")
    nests = (
        "seq", "seq", "loop", "branch", "catch", "gather", "gather_all", "group", "first",
        "first_cancel", "completed", "timeout", "wait_for", "queue", "lock", "semaphore",
        "event", "task", "shield", "declared", "sets",
    )  # fmt: skip
    if depth >= DEPTH_MAX or (depth and rng.random() < 0.35):
        kind = rng.choice(leaves)
        return kind, rng.choice(NAMES), rng.randrange(1, 50), rng.choice(EVENT_TYPES)
    kind = rng.choice(nests)
    parts = tuple(program(rng, depth + 1) for _ in range(rng.randrange(1, 4) + 2 * (not depth)))
    return kind, rng.randrange(1, 40), parts


class Walk:
    """`run` of a program.

    Args:
        root: the program.
        is_spoilt: a deliberate fault: take branches that do not repeat.
    """

    def __init__(self, root: Node, *, is_spoilt: bool = False) -> None:
        self.root = root
        self.is_spoilt = is_spoilt
        self.trace: list[Any] = []

    async def run(self, step: WorkflowStep) -> Any:
        """The workflow."""
        self.step = step
        self.trace = []
        value = await self.walk(self.root, "")
        return [value, len(self.trace)]

    async def walk(self, node: Node, path: str) -> int:
        """Do a node; gives a number that depends on what came of it."""
        kind = node[0]
        try:
            value = await getattr(self, "_" + kind)(node, f"{path}/{kind}")
        except BaseException as error:
            self.trace.append((path, kind, type(error).__name__))
            raise
        self.trace.append((path, kind, value))
        return int(value or 0)

    # leaves

    async def _do(self, node: Node, path: str) -> int:
        return await self.step.do(node[1], nothing, {"retries": {"limit": 2, "delay": node[2]}})

    async def _fragile(self, node: Node, path: str) -> int:
        config = {"retries": {"limit": 1, "delay": 0}, "timeout": 5}
        return await self.step.do(node[1], nothing, config)

    async def _told(self, node: Node, path: str) -> int:
        retries = {"limit": 2, "delay": lambda ctx, error: 1}  # the test says what it tells
        return await self.step.do(node[1], nothing, {"retries": retries})

    async def _hurried(self, node: Node, path: str) -> int:
        config = {"retries": {"limit": 3, "delay": 10}, "deadline": node[2]}
        return await self.step.do(node[1], nothing, config)

    async def _taken(self, node: Node, path: str) -> int:
        total = 0
        async for event in self.step.events(node[3], timeout=node[2], limit=1 + node[2] % 3):
            self.trace.append((path, "took", event.payload))
            total += event.payload
        return total

    async def _sleep(self, node: Node, path: str) -> None:
        await self.step.sleep(node[1], node[2])

    async def _wait(self, node: Node, path: str) -> int:
        return (await self.step.wait_for_event(node[1], node[3], timeout=node[2])).payload

    async def _pause(self, node: Node, path: str) -> None:
        await asyncio.sleep(node[2] % 7)

    # one after the other

    async def _seq(self, node: Node, path: str) -> int:
        return sum([await self.walk(part, f"{path}{n}") for n, part in enumerate(node[2])])

    async def _loop(self, node: Node, path: str) -> int:
        total = 0
        for turn in range(node[1] % 4):
            total += await self.walk(node[2][0], f"{path}{turn}")
        return total

    async def _branch(self, node: Node, path: str) -> int:
        value = await self.walk(node[2][0], f"{path}?")
        if self.is_spoilt:
            value += SPOILT.randrange(2)
        return await self.walk(node[2][value % len(node[2])], f"{path}{value % len(node[2])}")

    async def _catch(self, node: Node, path: str) -> int:
        try:
            return await self.walk(node[2][0], f"{path}t")
        except Exception as error:
            self.trace.append((path, "caught", type(error).__name__))
            return await self.walk(node[2][-1], f"{path}x")
        finally:
            self.trace.append((path, "finally"))

    # at the same time

    def _tasks(self, node: Node, path: str) -> list[asyncio.Task[int]]:
        return [
            asyncio.create_task(self.walk(part, f"{path}{n}"), name=f"{n}")
            for n, part in enumerate(node[2])
        ]

    async def _settle(self, tasks: Any) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _gather(self, node: Node, path: str) -> int:
        walks = (self.walk(part, f"{path}{n}") for n, part in enumerate(node[2]))
        return sum(await asyncio.gather(*walks))

    async def _gather_all(self, node: Node, path: str) -> int:
        walks = (self.walk(part, f"{path}{n}") for n, part in enumerate(node[2]))
        found = await asyncio.gather(*walks, return_exceptions=True)
        return sum(value if isinstance(value, int) else 1 for value in found)

    async def _group(self, node: Node, path: str) -> int:
        tasks: list[asyncio.Task[int]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.walk(part, f"{path}{n}"))
                    for n, part in enumerate(node[2])
                ]
        except* ValueError as failed:
            self.trace.append((path, "failed", len(failed.exceptions)))
        good = [task for task in tasks if not task.cancelled() and task.exception() is None]
        return sum(task.result() for task in good)

    async def _first(self, node: Node, path: str) -> int:
        tasks = set(self._tasks(node, path))
        total = 0
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self.trace.append((path, "first", task.get_name()))
                total = total * 3 + ((task.exception() is None and task.result()) or 0)
        return total % 97

    async def _first_cancel(self, node: Node, path: str) -> int:
        done, losers = await asyncio.wait(
            self._tasks(node, path), return_when=asyncio.FIRST_COMPLETED
        )
        self.trace.append((path, "won", sorted(task.get_name() for task in done)))
        await self._settle(losers)
        return len(done)

    async def _completed(self, node: Node, path: str) -> int:
        walks = [self.walk(part, f"{path}{n}") for n, part in enumerate(node[2])]
        total = 0
        for soon in asyncio.as_completed(walks):
            try:
                total = total * 3 + await soon
            except Exception as error:
                self.trace.append((path, "late", type(error).__name__))
        return total % 97

    async def _timeout(self, node: Node, path: str) -> int:
        try:
            async with asyncio.timeout(node[1]):
                return await self.walk(node[2][0], f"{path}t")
        except TimeoutError:
            self.trace.append((path, "timed out"))
            return 5

    async def _wait_for(self, node: Node, path: str) -> int:
        try:
            return await asyncio.wait_for(self.walk(node[2][0], f"{path}w"), node[1])
        except TimeoutError:
            return 7

    async def _queue(self, node: Node, path: str) -> int:
        queue: asyncio.Queue[tuple[str, int]] = asyncio.Queue(maxsize=1 + node[1] % 2)

        async def work(task: asyncio.Task[int]) -> None:
            await asyncio.wait([task])
            failed = task.cancelled() or task.exception()
            await queue.put((task.get_name(), 0 if failed else task.result()))

        workers = [asyncio.create_task(work(task)) for task in self._tasks(node, path)]
        total = 0
        for _ in workers:
            name, value = await queue.get()
            self.trace.append((path, "got", name))
            total = total * 3 + value
        await asyncio.gather(*workers)
        return total % 97

    async def _guarded(self, node: Node, path: str, guard: Any) -> int:
        async def one(part: Node, here: str) -> int:
            async with guard:
                self.trace.append((here, "in"))
                return await self.walk(part, here)

        found = await asyncio.gather(
            *(one(part, f"{path}{n}") for n, part in enumerate(node[2])), return_exceptions=True
        )
        return len(found)

    async def _lock(self, node: Node, path: str) -> int:
        return await self._guarded(node, path, asyncio.Lock())

    async def _semaphore(self, node: Node, path: str) -> int:
        return await self._guarded(node, path, asyncio.Semaphore(2))

    async def _event(self, node: Node, path: str) -> int:
        event = asyncio.Event()

        async def opener() -> None:
            try:
                await self.walk(node[2][0], f"{path}o")
            finally:
                event.set()

        opening = asyncio.create_task(opener())
        await event.wait()
        await asyncio.wait([opening])
        return await self.walk(node[2][-1], f"{path}e")

    async def _task(self, node: Node, path: str) -> int:
        task = asyncio.create_task(self.walk(node[2][0], f"{path}n"))
        await self.walk(node[2][-1], f"{path}m")
        if node[1] % 3 == 0:
            await self._settle([task])
            return 2
        return await task

    async def _shield(self, node: Node, path: str) -> int:
        inner = asyncio.ensure_future(self.walk(node[2][0], f"{path}s"))
        try:
            return await asyncio.wait_for(asyncio.shield(inner), node[1])
        except TimeoutError:
            return await inner

    async def _declared(self, node: Node, path: str) -> int:
        step = self.step
        name = f"d{path}"

        async def left() -> int:
            return 1

        async def right() -> int:
            return 1

        async def both(one: int, two: int) -> int:
            return one + two

        one, two = step.do(f"{name} l")(left), step.do(f"{name} r")(right)
        sum_of = step.do(f"{name} s", depends=[one, two], concurrent=node[1] % 2 == 0)(both)
        first, second = await asyncio.gather(sum_of(), two(), return_exceptions=True)
        return int(isinstance(first, int)) + int(isinstance(second, int))

    async def _sets(self, node: Node, path: str) -> int:
        """A set of tasks is looked through in the same order at each replay."""
        tasks = set(self._tasks(node, path))
        await asyncio.wait(tasks)
        for task in tasks:
            self.trace.append((path, "set", task.get_name()))
        return len(tasks)


# --- playing --------------------------------------------------------------------------------------


class Turn:
    """What is on disk, and what had been noted, after a turn."""

    def __init__(self, play: Wild) -> None:
        self.rows = dict(play.rows)
        self.events = dict(play.events)
        self.buffered = list(play.buffered)
        self.trace = list(play.walk.trace)
        self.now_ms, self.seq = play.now_ms, play.seq


class Wild(Play):
    """A play of a program, in which a seed decides what happens next."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.turns: list[Turn] = []
        self.buffered: list[tuple[int, str, int]] = []
        self.seq = 0
        super().__init__(walk.run)

    def _take(self) -> None:
        consumed = set(self.execution.consumed)
        super()._take()
        self.buffered = [event for event in self.buffered if event[0] not in consumed]
        self.turns.append(Turn(self))

    def send(self, event_type: str, payload: Any = None) -> None:
        self.seq += 1
        self.events[self.seq] = str(payload).encode()
        self.buffered.append((self.seq, event_type, self.now_ms))
        self.execution.buffer_event(self.seq, event_type, self.now_ms)

    def crash_after(self, turn: Turn) -> None:
        """Go on from what was on disk after a turn."""
        self.execution.close()
        self.rows, self.events = dict(turn.rows), dict(turn.events)
        self.buffered, self.now_ms, self.seq = list(turn.buffered), turn.now_ms, turn.seq
        self._begin(Journal.of(record_from_row(self.rows[n]) for n in sorted(self.rows)))

    def _begin(self, journal: Journal) -> None:
        self.bodies, self.asked, self.stopped = {}, {}, []
        self.execution = Execution(journal, 7, "workflow 'wild'", self.events.__getitem__)
        for event in self.buffered:
            self.execution.buffer_event(*event)
        self.execution.begin(self.run(WorkflowStep(self.execution)), self.started_ms, self.now_ms)
        self._take()

    def play(self, rng: Random) -> None:
        """Until it ends, is stuck, or has gone on for long enough."""
        for _ in range(ACTS_MAX):
            if self.execution.outcome is not None or not self.act(rng):
                return

    def act(self, rng: Random) -> bool:
        """Something happens. False: nothing can."""
        due_ms = self.execution.next_due_ms()
        choices = ["body"] * 3 * bool(self.bodies) + ["time"] * bool(due_ms)
        choices += ["delay"] * 3 * bool(self.asked)
        if not choices:
            return False
        choice = rng.choice([*choices, "event"])
        if choice == "time":
            self.advance(max(0, due_ms - self.now_ms) + rng.choice((0, 0, 1, 5_000)))
        elif choice == "delay":
            problem = rng.random() < 0.2 and RecordedError(NO_DELAY, "RetryDelayFailed", "odd")
            self.tell(rng.choice(sorted(self.asked)), rng.randrange(0, 9_000), problem or None)
        elif choice == "event":
            self.send(rng.choice(EVENT_TYPES), rng.randrange(100))
            self.look()
        else:
            name = rng.choice(sorted(self.bodies))
            how = rng.random()
            if how < 0.75:
                self.finish(name, rng.randrange(100))
            elif how < 0.95:
                self.fail(name, ValueError("by chance"))
            else:
                self.fail(name, NonRetryableError("by chance"))
        return True
