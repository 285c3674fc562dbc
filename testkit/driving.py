"""Runs a simulated world from blocking code, a piece at a time.

Other event loops of the same thread stand still meanwhile, so that it serves in an `async def`
test as well. What runs in the world can't drive it.
"""

from __future__ import annotations

from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from ..runtime.errors import InvalidArgument, OutcomeUnknown, SystemFault
from .parts import FrontEnd
from .users import UsersWorld

T = TypeVar("T")
_TRIES = 20


class Driver:
    """See the module.

    Args:
        world: the world.
        front: the front end that is asked.
        new_id: gives request ids.
    """

    def __init__(self, world: UsersWorld, front: FrontEnd, new_id: Callable[[], str]) -> None:
        self._world = world
        self._front = front
        self._new_id = new_id
        self._is_busy = False
        self.is_closed = False

    def check(self) -> None:
        """Refuse what can't be done now (`InvalidArgument`)."""
        if self.is_closed:
            raise InvalidArgument("the simulation is closed; make another one.")
        if self._is_busy:
            raise InvalidArgument(
                "the simulation is running: its own bodies and workflows can't drive it. "
                "Call it from the test."
            )

    def ask(self, work: Callable[[str], Coroutine[object, object, T]]) -> T:
        """Run a call of the client, again with the same request id if its outcome is unknown."""
        key = self._new_id()
        for _ in range(_TRIES):
            try:
                return self.run(lambda: work(key))
            except OutcomeUnknown:
                continue
            except SystemFault as error:
                if not error.retryable:
                    raise
        return self.run(lambda: work(key))

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work()` in the front end's process until it ends."""

        async def awaited() -> T:
            return await work()

        self.check()
        return self._drive(self._world.enter_front_end(self._front, awaited, lambda: None))

    def wait(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until it is so, after a commit, for so long at most; whether it is."""
        world = self._world

        async def wait() -> bool:
            done = world.driver.create_future()

            def look(is_over: bool = False) -> None:
                if not done.done() and (is_over or is_so() or world.problem is not None):
                    done.set_result(None)

            timer = world.driver.call_later(seconds, look, True)
            world.watcher = look
            look()
            await done
            world.watcher = lambda: None
            timer.cancel()
            return is_so()

        self.check()
        return self._drive(wait())

    def _drive(self, work: Coroutine[object, object, T]) -> T:
        outside = events._get_running_loop()
        events._set_running_loop(None)
        self._is_busy = True
        try:
            return self._world.run(work)
        finally:
            self._is_busy = False
            events._set_running_loop(outside)
            if self._world.problem is not None:
                raise self._world.problem
