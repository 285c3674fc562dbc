"""Deliberate bugs that are put into the system's own methods while a world runs.

Each shows that a checker would find it. Bugs that need a switch inside are in `parts.Sabotage`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from toque.engines import present
from toque.engines.deletion import DeletableInstance
from toque.engines.engine import Engine
from toque.engines.journal import BLOBS, DO, DONE, EVENTS, Journal
from toque.engines.life import InstanceLife
from toque.engines.operations import InstanceOperations
from toque.engines.rollback import Unwinding
from toque.engines.rows import InstanceRows
from toque.engines.shield import Shield
from toque.runtime.codec import NULL
from toque.runtime.payload_codec import Seal

from .sabotage_code import CODE_BUGS
from .sabotage_control import CONTROL_BUGS
from .sabotage_kin import KIN_BUGS
from .sabotage_moving import MOVING_BUGS

Bug = tuple[Any, str, Callable[..., Any]]


def _undo_twice() -> Bug:
    """That a rollback of a step is done is not written."""
    end = Unwinding._end

    def forgetful(self: Any, claim: Any, state: int) -> None:
        end(self, claim, state)
        if state == DONE:
            self.dirty.pop(claim.record.ordinal, None)

    return Unwinding, "_end", forgetful


def _undo_oldest_first() -> Bug:
    """Rollbacks run in the order in which steps began."""
    init = Unwinding.__init__

    def reversed_init(self: Any, *args: Any) -> None:
        init(self, *args)
        self._todo.reverse()

    return Unwinding, "__init__", reversed_init


def _events_lost_at_continue() -> Bug:
    """A run that continues as new drops the events that nobody took."""
    follow = InstanceLife._follow

    def dropping(self: Any, now_ms: int, params: bytes) -> None:
        for row in self._rows._all(EVENTS):
            self._rows._delete(EVENTS, row[:2])
        self._instance.events_buffered = 0
        follow(self, now_ms, params)

    return InstanceLife, "_follow", dropping


def _no_shield() -> Bug:
    """A cancel goes through a shield."""

    async def enter(self: Any) -> None:
        self._task = type("Task", (), {"shields": 0, "is_owed": False})()

    return Shield, "__aenter__", enter


def _delete_untold() -> Bug:
    """A SousChef does not hear of a deletion, not even if it asks."""
    return DeletableInstance, "_bury", lambda self: None


def _deleted_pretend() -> Bug:
    """What is deleted says that all is well when it is asked how it stands."""
    poke = Engine.poke
    return Engine, "poke", lambda self: True if self._instance is None else poke(self)


def _restart_keeps_first() -> Bug:
    """A restart keeps the old run's first result."""
    begin = InstanceLife._begin_run

    def keeping(self: Any, now_ms: int, first: int = 1) -> None:
        begin(self, now_ms, 2 if self._instance.started_ms is None and first == 1 else first)

    return InstanceLife, "_begin_run", keeping


def _fork_drops_kept() -> Bug:
    """A restart from a step keeps nothing."""
    begin = InstanceLife._begin_run
    return InstanceLife, "_begin_run", lambda self, now_ms, first=1: begin(self, now_ms)


def _restart_twice() -> Bug:
    """A restart that is asked for again is done again."""
    once = InstanceOperations._once

    def again(self: Any, request_id: str, act: Any, *asked: object) -> Any:
        if asked[0] == "restart":
            request_id = self.ctx.entropy.new_id()
        return once(self, request_id, act, *asked)

    return InstanceOperations, "_once", again


def _stream_unnamed() -> Bug:
    """No row names a stream, so that an opening sweeps it away."""
    put = InstanceRows._put

    def unnamed(self: Any, table: Any, row: Any) -> None:
        if table is not BLOBS:
            put(self, table, row)

    return InstanceRows, "_put", unnamed


def _no_codec() -> Bug:
    """Payloads do not go through the account's codec."""
    return Seal, "close", lambda self, raw: raw


def _secret_shown() -> Bug:
    """A sensitive output is shown."""
    return present, "shown_output", lambda record: record.result or NULL


def _event_outside_commit() -> Bug:
    """An event that was taken goes in a later commit than what the wait gave."""

    def later(self: Any, seq: int) -> None:
        context, key = self._ctx, (self._key, seq)

        def delete() -> None:
            if not context.ended:
                context.delete(EVENTS, key)

        asyncio.get_running_loop().call_later(2.0, delete)

    return InstanceRows, "delete_event", later


def _stale_grant() -> Bug:
    """An Engine takes any grant while it is queued."""
    grant = Engine.grant

    def trusting(self: Any, run_id: str, turn: int) -> bool:
        instance = self._instance
        if instance is not None and instance.status == "queued":
            return grant(self, instance.run_id, instance.turn)
        return grant(self, run_id, turn)

    return Engine, "grant", trusting


def _replay_order_ignored() -> Bug:
    """Recorded outcomes are given in the order in which the steps began."""

    def begun(self: Any) -> list[Any]:
        return sorted((r for r in self.records if r.order), key=lambda r: r.ordinal)

    return Journal, "delivered", begun


def _result_unwritten() -> Bug:
    """That a step is done is not written."""
    put = InstanceRows.put_record

    def forgetful(self: Any, record: Any, **options: Any) -> None:
        if record.kind != DO or record.state != DONE:
            put(self, record, **options)

    return InstanceRows, "put_record", forgetful


def _tombstone_forgotten() -> Bug:
    """A deletion leaves nothing behind."""
    delete = DeletableInstance._delete

    def clean(self: Any, instance: Any, now_ms: int, expires_ms: int) -> None:
        delete(self, instance, now_ms, expires_ms)
        self._rows.wipe_requests()
        self._rows.put_tombstone(None)
        self._rows.flush()

    return DeletableInstance, "_delete", clean


def _request_forgotten() -> Bug:
    """Which requests were answered is not kept."""
    return InstanceRows, "keep_answer", lambda self, request_id, seq, answer, content=0: None


BUGS: dict[str, tuple[Callable[[], Bug], ...]] = {
    "undo_twice": (_undo_twice,),
    "undo_oldest_first": (_undo_oldest_first,),
    "events_lost_at_continue": (_events_lost_at_continue,),
    "no_shield": (_no_shield,),
    "delete_untold": (_delete_untold, _deleted_pretend),
    "restart_keeps_first": (_restart_keeps_first,),
    "fork_drops_kept": (_fork_drops_kept,),
    "restart_twice": (_restart_twice,),
    "stream_unnamed": (_stream_unnamed,),
    "no_codec": (_no_codec,),
    "secret_shown": (_secret_shown,),
    "event_outside_commit": (_event_outside_commit,),
    "stale_grant": (_stale_grant,),
    "replay_order_ignored": (_replay_order_ignored,),
    "result_unwritten": (_result_unwritten,),
    "tombstone_forgotten": (_tombstone_forgotten,),
    "request_forgotten": (_request_forgotten,),
    **CODE_BUGS,
    **CONTROL_BUGS,
    **KIN_BUGS,
    **MOVING_BUGS,
}


@contextmanager
def bugs(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Those of the names that are in here are in force; gives the others."""
    with ExitStack() as stack:
        for name in names:
            for make in BUGS.get(name, ()):
                stack.enter_context(patch.object(*make()))
        yield tuple(name for name in names if name not in BUGS)
