"""The two gates of an entity: what may come in, and what may go out.

*Input gate*: held (locked) while a storage operation is outstanding or a critical section runs;
events that arrive meanwhile wait in order. Each holder gets a token and must give it back; the
gate opens when none is out.

*Output gate*: an answer or a call passes once the commit that holds the entity's newest write
is durable. It never passes if that commit fails: the entity is reset instead, and the callers
get the error.

Neither knows what an event is: they order callbacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .errors import Overloaded
from .store import Store


def _nobody(error: BaseException) -> None:
    """Hears of failures that concern nobody."""


class InputGate:
    """Lets events in, one after another, while nobody holds it.

    Args:
        waiting_max: how many events may wait before `enter` refuses.
    """

    __slots__ = ("_holders", "_waiting", "_waiting_max")

    def __init__(self, waiting_max: int) -> None:
        self._holders = 0
        self._waiting: deque[Callable[[], None]] | tuple[()] = ()  # made when needed: it is big
        self._waiting_max = waiting_max

    @property
    def closed(self) -> bool:
        """Whether an event would have to wait."""
        return self._holders > 0 or bool(self._waiting)

    @property
    def waiting(self) -> int:
        """How many events wait."""
        return len(self._waiting)

    def enter(self, event: Callable[[], None]) -> None:
        """Run `event` now if the gate is open, else when it opens, in order of arrival.

        Raises:
            Overloaded: too many events wait already; `event` will not run.
        """
        if not self.closed:
            event()
            return
        if len(self._waiting) >= self._waiting_max:
            raise Overloaded(f"{self._waiting_max} calls wait for this entity already.")
        if not isinstance(self._waiting, deque):
            self._waiting = deque()
        self._waiting.append(event)

    def hold(self) -> Callable[[], None]:
        """Close the gate; the result gives the hold back (calling it twice is harmless)."""
        self._holders += 1
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._holders -= 1
                self._drain()

        return release

    def _drain(self) -> None:
        while self._waiting and self._holders == 0:
            self._waiting.popleft()()

    def clear(self) -> list[Callable[[], None]]:
        """Forget all waiting events (the entity was reset), and give them."""
        waiting = list(self._waiting)
        self._waiting = ()
        return waiting


class OutputGate:
    """Holds back what an entity says until what it has written is durable.

    Args:
        store: the shard's store.
        owner: the owner under which the entity writes.
        on_failure: called when a commit of the entity's writes failed.
        always_open: a deliberate fault for the checkers: nothing is ever held back.

    Attributes:
        last_seq: the batch of the entity's newest write; who writes sets it.
    """

    __slots__ = ("_always_open", "_on_failure", "_owner", "_store", "last_seq")

    def __init__(
        self,
        store: Store,
        owner: object,
        on_failure: Callable[[BaseException], None],
        *,
        always_open: bool = False,
    ) -> None:
        self._store = store
        self._owner = owner
        self._on_failure = on_failure
        self.last_seq = 0
        self._always_open = always_open

    def let_go(self) -> None:
        """The entity is gone: a commit that fails is nobody's business here any more."""
        self._on_failure = _nobody

    @property
    def open(self) -> bool:
        """Whether all the entity's writes are durable."""
        return self._always_open or self._store.durable_seq >= self.last_seq

    def passes(
        self,
        go: Callable[[], None],
        refuse: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Run `go` when all writes made so far are durable; `refuse` if they never will be."""
        if self.open:
            go()
            return

        def settled(error: BaseException | None) -> None:
            if error is None:
                go()
                return
            self._on_failure(error)
            if refuse is not None:
                refuse(error)

        self._store.when_durable(self.last_seq, settled, self._owner)
