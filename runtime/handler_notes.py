"""Whose handler runs on a shard's loop: noted for users' entities, read once the process has ended.

An alarm and a message of the outbox come again until they are handled. If the handler ends its
process, or blocks it until the supervisor does, they would come again as soon as the shard is
open, and nobody else on it would ever be served. So what was running when the process ended waits:
an alarm as after a failure, ever longer; messages to that entity for BLAMED_PAUSE_MS, during which
others are served. What ran innocently beside waits a moment too, and no more comes of it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from .ids import EntityRef
from .notes import LOOP, Notes, notes_path, read_notes

ALARM = "alarm"
CALL = "call"
MESSAGE = "message"


class Handling(NamedTuple):
    """A handler that ran.

    Attributes:
        trigger: `alarm`, `call` or `message`.
        ref: whose it is.
    """

    trigger: str
    ref: EntityRef


def handler_notes_path(data_dir: str | os.PathLike[str], shard: str) -> str:
    """Where a shard keeps these notes."""
    return notes_path(data_dir, f"{shard}.entities")


def read_handling(path: str | os.PathLike[str]) -> Handling | None:
    """What ran when the process ended that kept these notes; None if nothing did."""
    for note in read_notes(path):
        trigger, kind, key = [*note.key.split(" ", 2), "", ""][:3]
        if note.on_loop and key:
            return Handling(trigger, EntityRef(kind, key))
    return None


class HandlerNotes:
    """See the module's description.

    Args:
        path: the file.
        kinds: the entity kinds that are noted.

    Attributes:
        blamed: what ran when the shard was last open and not closed in order.
    """

    def __init__(self, path: str | os.PathLike[str], kinds: Iterable[str]) -> None:
        self.blamed = read_handling(path)
        self._kinds = frozenset(kinds)
        self._notes = Notes(path)

    def tag(self, trigger: str, ref: EntityRef) -> bytes | None:
        """What is noted of a handler; None for entities that are not noted."""
        if ref.kind not in self._kinds:
            return None
        return Notes.tag(f"{trigger} {ref.kind} {ref.key}")

    def run(self, trigger: str, ref: EntityRef, handler: Callable[..., Any], *args: Any) -> Any:
        """Call a handler and give its result; a coroutine's later steps are noted too."""
        tag = self.tag(trigger, ref)
        if tag is None:
            return handler(*args)
        self.enter(tag)
        try:
            result = handler(*args)
        finally:
            self.leave()
        return Noted(result, self, tag) if inspect.iscoroutine(result) else result

    def enter(self, tag: bytes) -> None:
        """A handler goes on."""
        self._notes.enter(LOOP, tag)

    def leave(self) -> None:
        """It waits, or has ended."""
        self._notes.leave(LOOP)

    def is_blamed(self, trigger: str, ref: EntityRef) -> bool:
        """Whether that ran when the process ended."""
        return self.blamed is not None and self.blamed == (trigger, ref)

    def close(self) -> None:
        """All is in good order."""
        self._notes.close()


class Noted(Coroutine[Any, Any, Any]):
    """Runs `work`, and has each of its steps noted."""

    __slots__ = ("_notes", "_tag", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], notes: HandlerNotes, tag: bytes) -> None:
        self._work = work
        self._notes = notes
        self._tag = tag

    def send(self, value: Any) -> Any:
        self._notes.enter(self._tag)
        try:
            return self._work.send(value)
        finally:
            self._notes.leave()

    def throw(self, *error: Any) -> Any:
        self._notes.enter(self._tag)
        try:
            return self._work.throw(*error)
        finally:
            self._notes.leave()

    def close(self) -> None:
        self._work.close()

    def __next__(self) -> Any:
        return self.send(None)

    def __iter__(self) -> Noted:
        return self

    def __await__(self) -> Any:
        return self
