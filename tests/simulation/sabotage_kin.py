"""Deliberate bugs in what parents and children tell each other; see `sabotage`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from toque.engines.family import FamilyInstance
from toque.engines.operations import InstanceOperations
from toque.engines.parenting import ParentInstance
from toque.runtime.outbox import REPEATABLE

Bug = tuple[Any, str, Any]
_LATER_S = 1.0


def _end_outside_commit() -> Bug:
    """A child tells its end a while after the commit of it, by memory alone."""
    tell = FamilyInstance._tell_parent

    def later(self: Any, *args: Any) -> None:
        before = list(self._rows._letters)
        tell(self, *args)
        letters = [each for each in self._rows._letters if each not in before]
        self._rows._letters[:] = before
        host = self.ctx._host

        def send(letter: Any) -> None:
            host.router.call(letter.dest, letter.method, *letter.args).add_done_callback(_look)

        for letter in letters:
            self.env.loop.call_later(_LATER_S, partial(send, letter))

    return FamilyInstance, "_tell_parent", later


def _look(done: Any) -> None:
    if not done.cancelled():
        done.exception()


def _orphan_unasked() -> Bug:
    """A child that says it is there hears nothing, wanted or not."""
    made = ParentInstance.child_made

    def silent(self: Any, call: str, key: str, on_end: str) -> str:
        child = None if self._instance is None else self._rows.child(call)
        if child is None or child.is_let_go:
            return REPEATABLE
        return made(self, call, key, on_end)

    return ParentInstance, "child_made", silent


def _children_untold() -> Bug:
    """A run that is over tells its children nothing."""
    return FamilyInstance, "_tell_child", lambda self, key, call, on_end: None


def _child_made_anew() -> Bug:
    """A child that is asked for again is asked for as another one."""
    ask = ParentInstance._ask_for

    async def anew(self: Any, run: Any, birth: Any, parent: Any) -> None:
        if birth.attempt > 1:
            call = msgspec.structs.replace(birth.call, id=f"{birth.call.id}-{birth.attempt}")
            birth = birth._replace(call=call)
        await ask(self, run, birth, parent)

    return ParentInstance, "_ask_for", anew


def _early_end_lost() -> Bug:
    """The end of a child that nobody waits for yet is dropped."""
    take = ParentInstance._take_in

    def choosy(self: Any, event_type: str, payload: bytes, now_ms: int) -> None:
        if event_type.startswith("~") and event_type not in self._instance.awaited:
            return
        take(self, event_type, payload, now_ms)

    return ParentInstance, "_take_in", choosy


def _end_not_given_back() -> Bug:
    """A restart from a step takes what a wait for a child was given, and gives it to nobody."""
    fork = InstanceOperations._fork

    def greedy(self: Any, instance: Any, target: Any) -> None:
        before = dict(self._rows._gathered)
        fork(self, instance, target)
        for place in [p for p in self._rows._gathered if p not in before and p[0] == "events"]:
            del self._rows._gathered[place]
            instance.events_buffered -= 1

    return InstanceOperations, "_fork", greedy


KIN_BUGS: dict[str, tuple[Callable[[], Bug], ...]] = {
    "end_outside_commit": (_end_outside_commit,),
    "orphan_unasked": (_orphan_unasked,),
    "children_untold": (_children_untold,),
    "child_made_anew": (_child_made_anew,),
    "early_end_lost": (_early_end_lost,),
    "end_not_given_back": (_end_not_given_back,),
}
