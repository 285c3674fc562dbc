"""Deliberate bugs in the runtime and in the control plane; see `sabotage`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from toque.api import changes, service
from toque.api.cache import AccountCache
from toque.api.listing import Lister
from toque.api.service import ControlPlane
from toque.gatekeeper import slots
from toque.gatekeeper.fairness import Claim
from toque.gatekeeper.slots import LeaseBook
from toque.runtime.activation import Activation
from toque.runtime.alarms import AlarmDriver
from toque.runtime.gates import InputGate
from toque.runtime.ids import engine_key
from toque.runtime.outbox import INBOX, Outbox
from toque.runtime.writer_sqlite import Writer
from toque.souschef.lane import Entry, Lane
from toque.souschef.pacing import Pacer
from toque.souschef.roster import Roster
from toque.souschef.rows import ORDER, PAUSED
from toque.souschef.souschef import SousChef

Bug = tuple[Any, str, Any]


def _outbox_unconfirmed() -> Bug:
    """A message of the outbox goes although nobody has confirmed it."""
    answered = Outbox._answered

    def careless(self: Any, dest: Any, message: Any, done: Any) -> None:
        taken = done.get_loop().create_future()
        taken.set_result(None)
        if not done.cancelled():
            done.exception()
        answered(self, dest, message, taken)

    return Outbox, "_answered", careless


def _outbox_twice() -> Bug:
    """A receiver does not know which messages it has taken."""
    get = Activation.get

    def forgetful(self: Any, table: Any, key: Any) -> Any:
        return None if table is INBOX else get(self, table, key)

    return Activation, "get", forgetful


def _bad_row_untold() -> Bug:
    """That a row could not be stored is told to nobody."""
    commit = Writer._commit_parts

    def silent(self: Any, batch: Any) -> Any:
        commit(self, batch)
        return {}

    return Writer, "_commit_parts", silent


def _bad_part_kept() -> Bug:
    """What an owner wrote beside a row that could not be stored is stored."""
    write = Writer._write_part

    def kept(self: Any, writes: Any) -> Any:
        error = write(self, writes)
        if error is not None:
            self._cursor.execute("RELEASE part")
            self._cursor.execute("SAVEPOINT part")
        return error

    return Writer, "_write_part", kept


def _no_input_gate() -> Bug:
    """Events enter an entity while it waits for its storage."""
    return InputGate, "hold", lambda self: lambda: None


def _alarms_lost() -> Bug:
    """An owner does not read the alarms that were set before it came."""

    def blind(self: Any) -> None:
        self._window_end_ms = 1 << 50

    return AlarmDriver, "_refill", blind


def _lease_lowered_early() -> Bug:
    """The ledger is lowered when less is given, not when the holder has confirmed."""
    lease = LeaseBook._lease

    def early(self: Any, holder: Any, target: int) -> None:
        self._take_out(holder)
        holder.ledger = min(holder.ledger, target)
        self._put_in(holder)
        lease(self, holder, target)

    return LeaseBook, "_lease", early


def _first_takes_all() -> Bug:
    """The first workflow has what it wants, and the others what is left."""

    def greedy(left: int, claims: Sequence[Claim]) -> list[int]:
        shares = []
        for claim in claims:
            shares.append(min(left, claim.wanted))
            left -= shares[-1]
        return shares

    return slots, "divide", greedy


def _counts_drift() -> Bug:
    """That a paused instance leaves is not counted."""
    count = Roster._count

    def drifting(self: Any, state: str, by: int) -> None:
        if by > 0 or state != PAUSED:
            count(self, state, by)

    return Roster, "_count", drifting


def _disorder_unmarked() -> Bug:
    """A SousChef does not note that an event is under way."""
    write = Roster._write
    return Roster, "_write", lambda self, partial: write(self, 0)


def _newest_first() -> Bug:
    """A lane gives its newest entry."""

    def pop(self: Any) -> Entry:
        rows = self._rows.scan(ORDER, (self._entity, self._lane), limit=1, reverse=True)
        entry = Entry(*rows[0][2:])
        self.remove(entry.at_ms, entry.key)
        return entry

    return Lane, "pop", pop


def _new_first() -> Bug:
    """New instances go before those that have run."""

    def lane(self: Any) -> Any:
        return next((lane for lane in (self.fresh, self.awakened) if lane.count), None)

    return Roster, "_next_lane", lane


def _seventh_new() -> Bug:
    """Of the choices between both lanes each seventh, not each eighth, is of a new instance."""

    def lane(self: Any) -> Any:
        if not self.awakened.count or not self.fresh.count:
            return (
                self.awakened if self.awakened.count else self.fresh if self.fresh.count else None
            )
        self._streak += 1
        return self.awakened if self._streak % 7 else self.fresh

    return Roster, "_next_lane", lane


def _calls_too_often() -> Bug:
    """A SousChef calls twice in a period."""
    sent = SousChef._on_call_sent

    def hasty(self: Any) -> None:
        sent(self)
        self._next_call_s -= self._period_s / 2

    return SousChef, "_on_call_sent", hasty


def _c_exceeded() -> Bug:
    """The SousChefs of a shard do not take turns."""
    return Pacer, "when_free", lambda self, account, go: go()


def _account_ignored() -> Bug:
    """A front end knows one account only."""
    workflow = AccountCache.workflow

    def of_first(self: Any, account: str, name: str) -> Awaitable[Any]:
        return workflow(self, "acme", name)

    return AccountCache, "workflow", of_first


def _key_of_first(module: Any) -> Callable[[], Bug]:
    """An instance's key does not hold its account."""
    return lambda: (module, "engine_key", lambda account, uuid, id: engine_key("acme", uuid, id))


def _list_skips() -> Bug:
    """A page begins one row too late."""
    merged = Lister._merged

    async def skipping(self: Any, deadline: float, base: Any, after: Any, limit: int) -> Any:
        if after is None:
            return await merged(self, deadline, base, after, limit)
        return (await merged(self, deadline, base, after, limit + 1))[1:]

    return Lister, "_merged", skipping


def _list_repeats() -> Bug:
    """A page begins where the one before ended."""
    merged = Lister._merged

    async def repeating(self: Any, deadline: float, base: Any, after: Any, limit: int) -> Any:
        if after is not None:
            after = (after[0] + (1 if base.newest_first else -1), after[1])
        return await merged(self, deadline, msgspec.structs.replace(base), after, limit)

    return Lister, "_merged", repeating


def _extra_hop() -> Bug:
    """Reading an instance asks all shards first."""
    get = ControlPlane.get_instance

    async def roundabout(self: Any, account: str, workflow: str, *args: Any, **rest: Any) -> Any:
        record = await self._workflow(account, workflow)
        await self._counts(account, record.uuid, self._caller.deadline())
        return await get(self, account, workflow, *args, **rest)

    return ControlPlane, "get_instance", roundabout


def _nonsense_taken() -> Bug:
    """A front end does not look at instance ids."""
    return service, "check_instance_id", lambda value: value


CONTROL_BUGS: dict[str, tuple[Callable[[], Bug], ...]] = {
    "outbox_unconfirmed": (_outbox_unconfirmed,),
    "outbox_twice": (_outbox_twice,),
    "bad_row_untold": (_bad_row_untold,),
    "bad_part_kept": (_bad_part_kept,),
    "no_input_gate": (_no_input_gate,),
    "alarms_lost": (_alarms_lost,),
    "lease_lowered_early": (_lease_lowered_early,),
    "first_takes_all": (_first_takes_all,),
    "counts_drift": (_counts_drift,),
    "disorder_unmarked": (_disorder_unmarked,),
    "newest_first": (_newest_first,),
    "new_first": (_new_first,),
    "seventh_new": (_seventh_new,),
    "calls_too_often": (_calls_too_often,),
    "c_exceeded": (_c_exceeded,),
    "wall_broken": (_account_ignored, _key_of_first(service), _key_of_first(changes)),
    "list_skips": (_list_skips,),
    "list_repeats": (_list_repeats,),
    "extra_hop": (_extra_hop,),
    "nonsense_taken": (_nonsense_taken,),
}
