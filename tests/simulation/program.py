"""Workflows made from a seed: random programs over every feature, run by one entry point.

A program is JSON: a list of operations. What its end must be is known beforehand (`expected`),
whatever crashes meanwhile. Bodies report their starts and ends to the run's `Bodies` through
`hooks`, and return their token, so that each result names the execution that it came from.

operations: `["do", name, mode, n, ms]`, `["sleep", name, ms]`, `["until", name, ms]`,
`["event", name, type, timeout_ms]`, `["gather", [ops], [ops], ...]`, `["race", [ops], [ops], ...]`.
Modes of `do`: `ok`; `flaky` (the first n attempts fail); `fatal` (fails for good after n
retries); `refuse` (not retryable); `late` (the first attempt outlives its time-out, and its
result comes after the second began); `once` (no retries).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol

from toque.engines.failures import EventTimeout, NonRetryableError, StepFailed
from toque.runtime.entropy import Entropy

Op = list[Any]

EVENT_TYPES = ("order", "note")
_LATE_TIMEOUT_MS = 400


class BodyHooks(Protocol):
    """Where bodies report; one per process."""

    def begin(self, run: str, step: str, attempt: int, seen: list[Any], once: bool) -> int:
        """A body starts, after its run has seen those results; gives its token."""

    def end(self, token: int) -> None:
        """It is about to end."""


def program_entry(hooks: BodyHooks) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
    """`run` for one process: runs the program in its params, `{"run": its name, "ops": [...]}`."""

    async def run(event: Any, step: Any) -> dict[str, Any]:
        runner = _Runner(event.payload["run"], step, hooks, event.timestamp)
        await runner.all_of(event.payload["ops"])
        return {"seen": runner.seen, "events": runner.events}

    return run


class _Runner:
    def __init__(self, run: str, step: Any, hooks: BodyHooks, began: Any) -> None:
        self.run = run
        self.step = step
        self.hooks = hooks
        self.began = began
        self.seen: list[Any] = []
        self.events: list[Any] = []

    async def all_of(self, ops: list[Op]) -> None:
        for op in ops:
            await getattr(self, f"op_{op[0]}")(*op[1:])

    async def op_do(self, name: str, mode: str, n: int, ms: int) -> None:
        known = list(self.seen)
        hooks, run = self.hooks, self.run

        async def body(ctx: Any) -> Any:
            attempt = ctx.attempt
            token = hooks.begin(run, name, attempt, known, mode == "once")
            try:
                await asyncio.sleep(_length_ms(mode, attempt, ms) / 1000)
            except asyncio.CancelledError:
                if mode != "late":
                    raise
                await asyncio.sleep(ms / 1000)  # an author's body that will not be stopped
            hooks.end(token)
            if mode == "refuse":
                raise NonRetryableError(str(token))
            if mode == "fatal" or (mode == "flaky" and attempt <= n):
                raise ValueError(str(token))
            return token

        try:
            result = await self.step.do(name, body, config=_config(mode, n))
        except StepFailed as error:
            self.seen.append([name, int(error.message) if error.message.isdigit() else 0])
            if mode not in ("fatal", "refuse", "once"):
                raise
        else:
            self.seen.append([name, result])

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

    async def op_gather(self, *branches: list[Op]) -> None:
        await asyncio.gather(*(self.all_of(branch) for branch in branches))

    async def op_race(self, *branches: list[Op]) -> None:
        tasks = [asyncio.ensure_future(self.all_of(branch)) for branch in branches]
        done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        for task in done:
            task.result()


def _length_ms(mode: str, attempt: int, ms: int) -> int:
    if mode != "late":
        return ms
    return _LATE_TIMEOUT_MS * 20 if attempt == 1 else ms % (_LATE_TIMEOUT_MS // 2)


def _config(mode: str, n: int) -> dict[str, Any]:
    if mode == "once":
        return {"retries": {"limit": 0}, "timeout": 600}
    if mode == "late":
        retries = {"limit": 3, "delay": 0.1, "backoff": "constant"}
        return {"retries": retries, "timeout": _LATE_TIMEOUT_MS / 1000}
    if mode in ("fatal", "flaky"):
        return {"retries": {"limit": n, "delay": 0.5, "backoff": "exponential"}, "timeout": 600}
    return {"retries": {"limit": 2, "delay": 0.3, "backoff": "linear"}, "timeout": 600}


# --- making programs ---


class ProgramMaker:
    """Draws programs.

    Args:
        entropy: the seed's.
        size: how many operations at the top level, at most.
    """

    def __init__(self, entropy: Entropy, size: int = 5) -> None:
        self._entropy = entropy
        self._size = size
        self._names = 0

    def program(self) -> list[Op]:
        """A program; names of steps are used once in it."""
        self._names = 0
        return [self._op(2) for _ in range(1 + self._entropy.randrange(self._size))]

    def _ms(self, most: int) -> int:
        return 1 + int(most * self._entropy.random() ** 2)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _op(self, depth: int) -> Op:
        draw = self._entropy.randrange(100)
        if depth and draw < 10:
            return ["gather", *self._branches(depth)]
        if depth and draw < 16:
            return ["race", *self._branches(depth)]
        if draw < 28:
            return ["sleep", self._name("nap"), self._ms(8_000)]
        if draw < 33:
            return ["until", self._name("until"), self._ms(20_000)]
        if draw < 43:
            kind = EVENT_TYPES[self._entropy.randrange(len(EVENT_TYPES))]
            return ["event", self._name("wait"), kind, 500 + self._ms(15_000)]
        return self._do()

    def _branches(self, depth: int) -> list[list[Op]]:
        return [
            [self._op(depth - 1) for _ in range(1 + self._entropy.randrange(2))]
            for _ in range(2 + self._entropy.randrange(2))
        ]

    def _do(self) -> Op:
        modes = ("ok", "ok", "ok", "ok", "flaky", "flaky", "fatal", "refuse", "late", "once")
        mode = modes[self._entropy.randrange(len(modes))]
        n = 1 + self._entropy.randrange(2) if mode in ("flaky", "fatal") else 0
        return ["do", self._name(mode), mode, n, self._ms(1_500)]


def steps_of(ops: list[Op]) -> dict[str, str]:
    """Name and mode of each `do` that runs for certain (not in a race)."""
    found: dict[str, str] = {}
    for op in ops:
        if op[0] == "do":
            found[op[1]] = op[2]
        elif op[0] == "gather":
            for branch in op[1:]:
                found.update(steps_of(branch))
    return found


def waits_of(ops: list[Op]) -> int:
    """How many waits for events a program makes for certain."""
    found = 0
    for op in ops:
        if op[0] == "event":
            found += 1
        elif op[0] == "gather":
            found += sum(waits_of(branch) for branch in op[1:])
    return found


def lengths_of(ops: list[Op], kind: str) -> dict[str, int]:
    """The last argument of each `sleep` (its length) or `event` (its time-out), by name."""
    found: dict[str, int] = {}
    for op in ops:
        if op[0] == kind:
            found[op[1]] = op[-1]
        elif op[0] in ("gather", "race"):
            for branch in op[1:]:
                found.update(lengths_of(branch, kind))
    return found
