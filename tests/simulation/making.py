"""Scripts: what an instance is to run, how they are drawn, and what is known of them beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toque.runtime.entropy import Entropy

from .focus import EVERYTHING, Focus
from .program import (
    BRANCHED,
    EVENT_TYPES,
    UNSURE,
    Op,
    graph_names,
    reader_name,
    turn_names,
)


@dataclass(frozen=True)
class Script:
    """What an instance is to run.

    Attributes:
        parts: one program after the other; `continue_as_new` leads from each to the next.
        cleanup: it cleans up, in a shield, if it is cancelled.
        doomed: it ends by an error.
    """

    parts: list[list[Op]]
    cleanup: bool = False
    doomed: bool = False

    def params(self, run: str) -> dict[str, Any]:
        """The params of a create; `run` names it in reports of bodies."""
        return {
            "run": run,
            "part": 0,
            "ops": self.parts[0],
            "then": self.parts[1:],
            "cleanup": self.cleanup,
            "doomed": self.doomed,
            "carried": {"seen": [], "events": []},
        }

    @property
    def ops(self) -> list[Op]:
        """Those of all parts."""
        return [op for part in self.parts for op in part]


class ProgramMaker:
    """Draws scripts.

    Args:
        entropy: the seed's.
        size: how many operations at the top level, at most.
        focus: what scripts are full of.
        extra: more modes of steps, of which every sixth has one.
    """

    def __init__(
        self,
        entropy: Entropy,
        size: int = 5,
        focus: Focus = EVERYTHING,
        extra: tuple[str, ...] = (),
    ) -> None:
        self._entropy = entropy
        self._size = size
        self._focus = focus
        self._names = 0
        self._extra = extra

    def script(self) -> Script:
        """A script; names of steps are used once in it."""
        self._names = 0
        draw = self._entropy.randrange
        meets = self._focus.meets
        several = meets("parts", 6, self._entropy)
        parts = [self._program() for _ in range(2 + draw(2) if several else 1)]
        return Script(parts, cleanup=draw(2) == 0, doomed=meets("doomed", 6, self._entropy))

    def _program(self) -> list[Op]:
        return [self._op(2) for _ in range(1 + self._entropy.randrange(self._size))]

    def _ms(self, most: int) -> int:
        return 1 + int(most * self._entropy.random() ** 2)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _op(self, depth: int) -> Op:
        draw = self._entropy.randrange(100)
        if depth and draw < 18:
            kinds = ("gather", "turn", "turn", "group", "soon", "race", "race", "hurry", "hurry")
            kind = kinds[self._entropy.randrange(len(kinds))]
            if kind == "hurry":
                return [kind, self._name(kind), self._ms(4_000), self._branch(depth)]
            branches = 2 + self._entropy.randrange(2)
            named = [self._name(kind)] if kind == "turn" else []
            return [kind, *named, *(self._branch(depth) for _ in range(branches))]
        if depth == 2 and draw < 27:  # not in a branch that may be given up
            return ["shield", self._name("shield"), self._branch(1)]
        if draw < 34:
            return ["sleep", self._name("nap"), self._ms(8_000)]
        if draw < 38:
            return ["until", self._name("until"), self._ms(20_000)]
        if draw < 48:
            return self._wait()
        if draw < 53:
            return ["stream", self._name("stream"), self._ms(800)]
        if draw < 56:
            return ["graph", self._name("graph"), self._ms(500)]
        return self._do()

    def _branch(self, depth: int) -> list[Op]:
        return [self._op(depth - 1) for _ in range(1 + self._entropy.randrange(2))]

    def _wait(self) -> Op:
        kind = EVENT_TYPES[self._entropy.randrange(len(EVENT_TYPES))]
        if self._entropy.randrange(4) == 0:
            n = 1 + self._entropy.randrange(2)
            return ["take", self._name("take"), kind, n, 500 + self._ms(8_000)]
        return ["event", self._name("wait"), kind, 500 + self._ms(15_000)]

    def _do(self) -> Op:
        modes: tuple[str, ...] = (
            *("ok", "ok", "ok", "ok", "undo", "undo", "undo", "flaky", "flaky", "told", "fatal"),
            *("refuse", "late", "once", "secret", "overdue", "broken"),
        )
        if self._focus.modes and self._entropy.randrange(2):
            modes = self._focus.modes
        if self._extra and self._entropy.randrange(6) == 0:
            modes = self._extra
        mode = modes[self._entropy.randrange(len(modes))]
        n = 1 + self._entropy.randrange(2) if mode in ("flaky", "fatal", "told") else 0
        if mode in ("undo", "broken"):
            n = self._entropy.randrange(2)
        return ["do", self._name(mode), mode, n, self._ms(1_500)]


def _inner(op: Op, *, certain: bool) -> list[list[Op]]:
    """The lists of operations in an operation."""
    if op[0] in UNSURE and certain:
        return []
    if op[0] in BRANCHED:
        return list(op[2:] if op[0] == "turn" else op[1:])
    return [op[-1]] if op[0] in ("shield", "hurry") else []


def walk(ops: list[Op], *, certain: bool) -> Iterator[Op]:
    """All operations; `certain`: not those that may be given up."""
    for op in ops:
        yield op
        for inner in _inner(op, certain=certain):
            yield from walk(inner, certain=certain)


def steps_of(ops: list[Op], *, certain: bool = True) -> dict[str, str]:
    """Name and mode of each step that runs for certain, or of all."""
    found: dict[str, str] = {}
    for op in walk(ops, certain=certain):
        if op[0] == "do":
            found[op[1]] = op[2]
        elif op[0] == "stream":
            found.update({op[1]: "stream", reader_name(op[1]): "reader"})
        elif op[0] == "turn" and not certain:
            found.update(dict.fromkeys(turn_names(op[1], len(op) - 2), "ok"))
        elif op[0] == "graph":
            found.update(dict.fromkeys(graph_names(op[1]), "graph"))
    return found


def waits_of(ops: list[Op]) -> int:
    """How many events a program takes at most, as far as it waits for certain."""
    waits = walk(ops, certain=True)
    return sum(op[3] if op[0] == "take" else op[0] == "event" for op in waits)


def lengths_of(ops: list[Op], *kinds: str) -> dict[str, int]:
    """The last argument of each `sleep` (its length) or `event` (its time-out), by name."""
    return {op[1]: op[-1] for op in walk(ops, certain=False) if op[0] in kinds}


def shields_of(ops: list[Op]) -> list[list[str]]:
    """The steps in each shield that run for certain once the first has begun."""
    return [
        list(steps_of(op[-1])) for op in walk(ops, certain=True) if op[0] == "shield" and op[-1]
    ]


def forks_of(script: Script) -> list[tuple[str, dict[str, bool]]]:
    """Steps to restart from: each with those that a restart from there keeps, if they have begun.

    True: they have, for certain. What a race or a time-out gave up may yet begin in a branch that
    nobody cancelled, after the restart as before it.
    """
    if len(script.parts) > 1:
        return []
    (ops,) = script.parts
    return [
        (op[1], {name: name in sure for name in steps_of(ops[:index], certain=False)})
        for index, op in enumerate(ops)
        if op[0] == "do"
        for sure in [steps_of(ops[:index])]
    ]
