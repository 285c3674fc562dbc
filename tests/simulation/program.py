"""Workflows made from a seed: random programs over every feature, run by one entry point.

A program is JSON: a list of operations. What its end must be is known beforehand (see
`verdict`), whatever crashes meanwhile. Bodies report their starts and ends to the run's `Bodies`
through `hooks`, and return their token, so that each result names the execution that it came
from. A script is one program or several, each of which continues as the next.

operations: `["do", name, mode, n, ms]`, `["stream", name, ms]`, `["graph", name, ms]`,
`["sleep", name, ms]`, `["until", name, ms]`, `["event", name, type, timeout_ms]`,
`["take", name, type, n, timeout_ms]`, `["shield", name, [ops]]`, `["hurry", name, ms, [ops]]`, and
with branches `[ops]`: `["gather", ...]`, `["group", ...]`, `["soon", ...]`, `["race", ...]`, and
`["turn", name, ...]`, after which a step follows that is named for the branch that was first.

Modes of `do`: `ok`; `flaky` (the first n attempts fail); `told` (as flaky, a function tells the
delay); `fatal` (fails for good after n retries); `refuse` (not retryable); `late` (the first
attempt outlives its time-out, and its result comes after the second began); `once` (no retries);
`overdue` (fails until its deadline); `secret` (its output is shown to nobody); `undo` (it has a
rollback, whose first n attempts fail); `broken` (as `refuse`, and it has a rollback); `block` (its
body holds the loop of its shard); `hang` and `deaf` (the first attempt never ends; `deaf` goes on
though it is cancelled); `exit` (the first attempt ends its process).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol

from toque.engines.failures import EventTimeout, NonRetryableError, StepFailed
from toque.engines.streams import Stream

Op = list[Any]

EVENT_TYPES = ("order", "note")
_LATE_TIMEOUT_MS = 400
MAY_FAIL = ("fatal", "refuse", "once", "overdue", "broken")
"""Modes whose steps may fail."""
HAS_UNDO = ("undo", "broken")
BRANCHED = ("gather", "group", "soon", "race", "turn")
UNSURE = ("race", "hurry")
"""What is in them may be given up."""
CLEANUP = "cleanup"
DOOM = "Doomed"
_STREAM_PARTS = 3
_DEAF_FOR = 3
"""How often a body that is deaf must be cancelled."""


class BodyHooks(Protocol):
    """Where bodies report; one per process."""

    def begin(
        self, run: str, life: str, step: str, attempt: int, seen: list[Any], once: bool
    ) -> int:
        """A body starts, after its run has seen those results; gives its token."""

    def undoing(self, run: str, life: str, step: str, output: Any) -> None:
        """A rollback starts and is given the step's result."""

    def end(self, token: int) -> None:
        """It is about to end."""

    def holds(self, lasts_s: float) -> None:
        """A body holds the loop of its process."""

    def hangs(self, is_deaf: bool) -> None:
        """A body does not end; one that is deaf not even if it is cancelled."""

    def exits(self, run: str) -> None:
        """User code of that run ends its process."""


def program_entry(hooks: BodyHooks) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
    """`run` for one process: runs the script in its params (see `making.Script`)."""

    async def run(event: Any, step: Any) -> dict[str, Any]:
        given = event.payload
        runner = _Runner(given, step, hooks, event.timestamp)
        try:
            await runner.all_of(given["ops"])
        except asyncio.CancelledError:
            if given["cleanup"]:
                async with step.shield():
                    await runner.op_do(CLEANUP, "ok", 0, 100)
            raise
        known = {"seen": runner.carried + runner.seen, "events": runner.events}
        if given["then"]:
            ops, *then = given["then"]
            after = {"part": given["part"] + 1, "ops": ops, "then": then, "carried": known}
            step.continue_as_new({**given, **after})
        if given["doomed"]:
            raise NonRetryableError(DOOM, DOOM, {"seen": known["seen"]})
        return known

    return run


class _Runner:
    def __init__(self, given: Any, step: Any, hooks: BodyHooks, began: Any) -> None:
        self.run: str = given["run"]
        self.life: str = step._core.whose.run
        self.step = step
        self.hooks = hooks
        self.began = began
        self.carried: list[Any] = given["carried"]["seen"]
        self.seen: list[Any] = []
        self.events: list[Any] = list(given["carried"]["events"])

    async def all_of(self, ops: list[Op]) -> None:
        for op in ops:
            await getattr(self, f"op_{op[0]}")(*op[1:])

    # --- steps ------------------------------------------------------------------------------

    def _body(self, name: str, mode: str, n: int, ms: int) -> Callable[..., Awaitable[Any]]:
        known = list(self.seen)
        hooks, run, life = self.hooks, self.run, self.life

        async def body(ctx: Any) -> Any:
            attempt = ctx.attempt
            token = hooks.begin(run, life, name, attempt, known, mode == "once")
            if mode == "block":
                hooks.holds(2 * ms / 1000)
            if mode in ("hang", "deaf") and attempt == 1:
                await _hang(hooks, mode == "deaf")
            if mode == "exit" and attempt == 1:
                hooks.exits(run)
                await asyncio.sleep(3_600)
            try:
                await asyncio.sleep(_length_ms(mode, attempt, ms) / 1000)
            except asyncio.CancelledError:
                if mode != "late":
                    raise
                await asyncio.sleep(ms / 1000)  # an author's body that will not be stopped
            hooks.end(token)
            if mode in ("refuse", "broken"):
                raise NonRetryableError(str(token))
            if mode in ("fatal", "overdue") or (mode in ("flaky", "told") and attempt <= n):
                raise ValueError(str(token))
            return token

        return body

    def _undo(self, name: str, n: int, ms: int) -> Callable[..., Awaitable[Any]]:
        known = list(self.seen)
        hooks, run, life = self.hooks, self.run, self.life

        async def undo(ctx: Any, output: Any) -> Any:
            hooks.undoing(run, life, name, output)
            token = hooks.begin(run, life, undo_name(name), ctx.attempt, known, False)
            await asyncio.sleep(ms / 1000)
            hooks.end(token)
            if ctx.attempt <= n:
                raise ValueError(str(token))
            return token

        return undo

    async def op_do(self, name: str, mode: str, n: int, ms: int) -> None:
        body, options = self._body(name, mode, n, ms), {}
        if mode in HAS_UNDO:
            retries = {"limit": n + 1, "delay": 0.2, "backoff": "constant"}
            options = {
                "rollback": self._undo(name, n, 2 * ms),
                "rollback_config": {"retries": retries},
            }
        try:
            result = await self.step.do(name, body, config=_config(mode, n), **options)
        except StepFailed as error:
            self.seen.append([name, int(error.message) if error.message.isdigit() else 0])
            if mode not in MAY_FAIL:
                raise
        else:
            self.seen.append([name, result])

    async def op_stream(self, name: str, ms: int) -> None:
        """A stream, and a step that reads it."""
        write = self._body(name, "ok", 0, ms)

        async def chunks(token: int) -> Any:
            for _ in range(_STREAM_PARTS):
                yield f"{token} ".encode() * 50

        async def body(ctx: Any) -> Any:
            return chunks(await write(ctx))

        stream = await self.step.do(name, body, config=_config("ok", 0))
        await self.step.sleep(f"{name}-gap", ms * 4 / 1000)  # in which much may happen
        read = self._body(reader_name(name), "ok", 0, ms)

        async def reading(ctx: Any) -> Any:
            token = await read(ctx)
            assert isinstance(stream, Stream)
            (found,) = set(stream.read().split())
            return [token, int(found)]

        token, found = await self.step.do(reader_name(name), reading, config=_config("ok", 0))
        self.seen += [[reader_name(name), token], [name, found]]

    async def op_graph(self, name: str, ms: int) -> None:
        """Declared steps: the third depends on the first two, the second on the first."""
        do, names = self.step.do, graph_names(name)
        one, two, all_three = (self._body(each, "ok", 0, ms) for each in names)

        async def first(ctx: Any) -> Any:
            return await one(ctx)

        async def second(ctx: Any, first: int) -> Any:
            return [await two(ctx), first]

        async def third(ctx: Any, first: int, second: list[int]) -> Any:
            assert second[1] == first
            return [await all_three(ctx), second[0], first]

        a = do(names[0])(first)
        b = do(names[1], depends=[a])(second)
        c = do(names[2], depends=[a, b], concurrent=ms % 2 == 0)(third)
        tokens = await c()
        self.seen += [[each, token] for each, token in zip(reversed(names), tokens, strict=True)]

    # --- waits ------------------------------------------------------------------------------

    async def op_sleep(self, name: str, ms: int) -> None:
        await self.step.sleep(name, ms / 1000)

    async def op_until(self, name: str, ms: int) -> None:
        until = datetime.fromtimestamp(self.began.timestamp() + ms / 1000, UTC)
        await self.step.sleep_until(name, until)

    async def op_event(self, name: str, event_type: str, timeout_ms: int) -> None:
        try:
            got = await self.step.wait_for_event(name, event_type, timeout=timeout_ms / 1000)
        except EventTimeout:
            self.events.append([event_type, None])
        else:
            self.events.append([event_type, got.payload])

    async def op_take(self, name: str, event_type: str, n: int, timeout_ms: int) -> None:
        events = self.step.events(event_type, name=name, timeout=timeout_ms / 1000, limit=n)
        async for got in events:
            self.events.append([event_type, got.payload])

    # --- at the same time -------------------------------------------------------------------

    async def op_shield(self, name: str, ops: list[Op]) -> None:
        async with self.step.shield():
            await self.all_of(ops)

    async def op_hurry(self, name: str, ms: int, ops: list[Op]) -> None:
        try:
            await asyncio.wait_for(self.all_of(ops), ms / 1000)
        except TimeoutError:
            pass

    async def op_gather(self, *branches: list[Op]) -> None:
        await asyncio.gather(*(self.all_of(branch) for branch in branches))

    async def op_group(self, *branches: list[Op]) -> None:
        async with asyncio.TaskGroup() as group:
            for branch in branches:
                group.create_task(self.all_of(branch))

    async def op_soon(self, *branches: list[Op]) -> None:
        for soon in asyncio.as_completed([self.all_of(branch) for branch in branches]):
            await soon

    async def op_turn(self, name: str, *branches: list[Op]) -> None:
        tasks = [asyncio.ensure_future(self.all_of(branch)) for branch in branches]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = min(number for number, task in enumerate(tasks) if task in done)
        await asyncio.gather(*tasks)
        await self.op_do(turn_names(name, len(branches))[first], "ok", 0, 60)

    async def op_race(self, *branches: list[Op]) -> None:
        tasks = [asyncio.ensure_future(self.all_of(branch)) for branch in branches]
        done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        for task in done:
            task.result()


async def _hang(hooks: BodyHooks, is_deaf: bool) -> None:
    hooks.hangs(is_deaf)
    for _ in range(_DEAF_FOR if is_deaf else 1):
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            if not is_deaf:
                raise
    raise asyncio.CancelledError


def turn_names(name: str, branches: int) -> list[str]:
    """The steps of which one follows a `turn`."""
    return [f"{name}-{number}" for number in range(branches)]


def _length_ms(mode: str, attempt: int, ms: int) -> int:
    if mode in ("hang", "deaf"):
        return ms % (_LATE_TIMEOUT_MS // 2)
    if mode != "late":
        return ms
    return _LATE_TIMEOUT_MS * 20 if attempt == 1 else ms % (_LATE_TIMEOUT_MS // 2)


def _config(mode: str, n: int) -> dict[str, Any]:
    if mode == "once":
        return {"retries": {"limit": 0}, "timeout": 600}
    if mode in ("late", "hang", "deaf"):
        # Enough of them: beside bodies that hold the loop, later attempts run out of time as well.
        retries = {"limit": 12, "delay": 0.1, "backoff": "constant"}
        return {"retries": retries, "timeout": _LATE_TIMEOUT_MS / 1000}
    if mode == "told":
        told = {"limit": n, "delay": lambda ctx, error: 0.2 * ctx.attempt, "backoff": "constant"}
        return {"retries": told, "timeout": 600}
    if mode == "overdue":
        often = {"limit": 50, "delay": 0.4, "backoff": "constant"}
        return {"retries": often, "timeout": 600, "deadline": 2}
    if mode in ("fatal", "flaky"):
        return {"retries": {"limit": n, "delay": 0.5, "backoff": "exponential"}, "timeout": 600}
    config = {"retries": {"limit": 2, "delay": 0.3, "backoff": "linear"}, "timeout": 600}
    return {**config, "sensitive": "output"} if mode == "secret" else config


def undo_name(step: str) -> str:
    """What a step's rollback is called in reports of bodies."""
    return f"undo {step}"


def reader_name(step: str) -> str:
    """The step that reads a step's stream."""
    return f"{step}-read"


def graph_names(name: str) -> tuple[str, str, str]:
    """The steps of a `graph`."""
    return f"{name}a", f"{name}b", f"{name}c"
