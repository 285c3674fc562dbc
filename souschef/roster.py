"""The roster of a SousChef: who is queued, who may use a slot, who is to be asked. Pure.

Takes reports, answers and leases with `now_ms`; writes rows through a narrow port and keeps the
grants that are to be sent. Guaranteed:

* `holding` (the rows in HELD) bounds what runs: a row is there, in the same commit at the
  latest, before a grant leaves, and goes only on the Engine's word that it left (a newer report,
  a refused grant, no such instance).
* A grant is made only while `holding` is below the lease's target. A lease that shrinks takes
  nothing away; the slots go back as instances leave.
* Awakened instances go first, oldest first; one grant in OLDEST_NEW_EVERY is the oldest new one's.

Reports may be late, doubled or out of order. Of one run the greater `seq` is newer. A run that
ended never comes back (the last ENDS_REMEMBERED_MAX are remembered); what a message of a run
before it brought back, though, goes when the Engine, asked, tells of that end again. Of two
other runs of one instance the later `since_ms` is newer; a report that breaks this (an old
message, or a clock set back) is held in doubt: the Engine is asked, and believed if it says the
same again. What slips through still heals: a grant to a run that is gone is refused, and whoever
was refused, or took a slot that nobody granted, is asked how it stands.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..engines.ports import Grant, StatusReport
from ..runtime import limits
from ..runtime.tables import Row, every_row
from .known import ASK_AT_ONCE, Doubts, Ends, Held
from .lane import Entry, Lane
from .lateness import Lateness
from .repair import put_in_order
from .rows import (
    AWAKENED,
    FRESH,
    HELD,
    NO_LANE,
    ORDER,
    PARKED,
    PAUSED,
    QUEUED,
    STATE,
    WAITING,
    WAKING,
    Rows,
)
from .sleepers import Sleepers

GrantsByShard = dict[str, list[Grant]]
AskedByShard = dict[str, list[tuple[str, str]]]
"""By data shard, `(key, run id)` of those to be asked how they stand."""


class Roster:
    """See the module.

    Args:
        rows: the store.
        entity: the SousChef's key.
        now_ms: the time of opening.
    """

    def __init__(self, rows: Rows, entity: str, now_ms: int) -> None:
        self._rows = rows
        self._entity = entity
        row = rows.get(STATE, (entity,)) or (entity, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "{}")
        self.lease_version: int = row[1]
        self.target: int = row[2]
        self.leased = bool(row[3])
        self.calls_reserved: int = row[4]
        awakened, fresh = row[5], row[6]
        self.waiting: int = row[7]
        self.paused: int = row[8]
        self.ended: dict[str, int] = msgspec.json.decode(row[11], type=dict[str, int])
        self._ended_text: str = row[11]
        self.held: dict[str, Held] = {}
        self.lateness = Lateness()
        self.grants = self.refusals = self.pokes = 0
        self.arrived = self.released = 0
        self._outgoing: GrantsByShard = {}
        self._arrivals: dict[str, StatusReport] = {}
        self._ends = Ends(limits.ENDS_REMEMBERED_MAX)
        self._doubts = Doubts(limits.ENDS_REMEMBERED_MAX)
        self._streak = 0
        self._dirty = False
        self._sleepers = Sleepers(rows, entity, self._change)
        self._load_held(now_ms)
        if row[10]:
            counts = put_in_order(rows, entity, self.held)
            awakened, fresh, self.waiting, self.paused = counts
        self.awakened = Lane(rows, entity, AWAKENED, awakened)
        self.fresh = Lane(rows, entity, FRESH, fresh)
        if row[10]:
            self._write_state()
        self._look_ahead()

    def _load_held(self, now_ms: int) -> None:
        rows = every_row(self._rows, HELD, (self._entity,))
        for _, key, run_id, seq, turn, since_ms, shard in rows:
            held = self.held[key] = Held(run_id, seq, turn, shard, since_ms, now_ms)
            held.granted = True

    # --- what it knows ----------------------------------------------------------------------

    @property
    def holding(self) -> int:
        """Slots in use, or granted and not yet refused."""
        return len(self.held)

    @property
    def queued(self) -> int:
        """How many wait for a slot."""
        return self.awakened.count + self.fresh.count

    @property
    def live(self) -> int:
        """How many instances it keeps."""
        return len(self.held) + self.queued + self.waiting + self.paused

    @property
    def next_wake_ms(self) -> int | None:
        """When the next of those that wait means to wake, or is to be asked."""
        return self._sleepers.next_ms

    def place_of(self, key: str) -> tuple[str, str, int | None]:
        """State, lane and position of an instance; see `souschef.QueuePlace`."""
        if key in self.held:
            return "granted", "", None
        row = self._rows.get(PARKED, (self._entity, key))
        if row is None or row[4] != QUEUED:
            return "elsewhere", "", None
        lane = row[6]
        before = self._rows.scan(ORDER, (self._entity, lane), limit=limits.QUEUE_POSITION_MAX)
        keys = (place for place, other in enumerate(before, 1) if other[3] == key)
        return "queued", "awakened" if lane == AWAKENED else "new", next(keys, None)

    # --- reports ----------------------------------------------------------------------------

    def on_reports(self, reports: Iterable[StatusReport], now_ms: int) -> None:
        """Engines say how they stand."""
        held, arrivals = self.held, self._arrivals
        for report in reports:
            key = report.key
            if key in arrivals:
                self._place_arrivals(now_ms)
            current = held.get(key)
            if current is not None:
                self._on_held_report(current, report, now_ms)
                continue
            row = self._rows.get(PARKED, (self._entity, key)) if self._parked else None
            if row is not None:
                self._on_parked_report(row, report, now_ms)
            elif not self._ends.has(key, report.run_id):
                self._enter(report)
                if report.state in (PAUSED, WAITING):
                    self._sleepers.ask_newcomer(key, now_ms)
        self._settle(now_ms)

    @property
    def _parked(self) -> int:
        return self.awakened.count + self.fresh.count + self.waiting + self.paused

    def _on_held_report(self, held: Held, report: StatusReport, now_ms: int) -> None:
        if report.run_id != held.run_id:
            if self._is_newer_run(report, held.run_id, held.since_ms):
                self._move(report, now_ms)
            return
        held.heard_ms = now_ms
        self._doubts.settle(report.key)
        if report.seq <= held.seq:
            return
        state = report.state
        if state == "running":
            held.seq = report.seq
            held.turn = max(held.turn, report.turn)
            held.granted = False
        elif state == QUEUED and report.turn <= held.turn:
            held.seq = report.seq  # said again; the grant for this turn is on its way
        else:
            self._move(report, now_ms)

    def _move(self, report: StatusReport, now_ms: int) -> None:
        """Out of a slot, to where the report says. The new row comes before the old one goes."""
        key = report.key
        self._change()
        del self.held[key]
        self.released += 1
        if report.state == QUEUED:
            self._grant_or_queue(report, now_ms)
        else:
            self._enter(report)
        if key not in self.held:
            self._rows.delete(HELD, (self._entity, key))

    def _on_parked_report(self, row: Row, report: StatusReport, now_ms: int) -> None:
        _, key, run_id, seq, state, turn, _, _, since_ms, wake_ms, _ = row
        if report.run_id != run_id:
            if not self._is_newer_run(report, run_id, since_ms):
                if key in self._doubts and state != QUEUED:  # the row must see to it itself
                    self._sleepers.ask_later(row, now_ms - limits.POKE_AFTER_MS)
                return
        else:
            self._doubts.settle(key)
            if report.seq <= seq:
                if report.seq == seq:
                    self._sleepers.as_known(row, now_ms)
                return
            if report.state == QUEUED and state == QUEUED and report.turn == turn:
                return
            if state == WAITING and report.state == QUEUED and 0 < wake_ms <= report.since_ms:
                self.lateness.add(report.since_ms - wake_ms)
        self._unqueue(row)
        is_sure = state != QUEUED and not Sleepers.is_to_be_asked(row)
        state = report.state
        if state == QUEUED:
            self._grant_or_queue(report, now_ms)
        else:
            self._enter(report)
            if state in (PAUSED, WAITING) and not is_sure:
                self._sleepers.ask_newcomer(key, now_ms)
        if key in self.held or state == "ended":
            self._rows.delete(PARKED, (self._entity, key))

    def _grant_or_queue(self, report: StatusReport, now_ms: int) -> None:
        self.arrived += 1
        if not self.queued and len(self.held) + len(self._arrivals) < self.target:
            self._grant(_entry_of(report), now_ms)
        else:
            self._queue(report)

    def _is_newer_run(self, report: StatusReport, run_id: str, since_ms: int) -> bool:
        """Whether a report of another run than the one on the roster is to be believed."""
        key = report.key
        if self._ends.has(key, report.run_id):
            if report.since_ms < since_ms:
                return False
            # else the row may be of a run before it, by a message that came late
        elif report.since_ms >= since_ms:
            self._doubts.settle(key)
            return True
        return self._doubts.is_resolved_by(key, run_id, report.run_id, report.shard)

    def _enter(self, report: StatusReport) -> None:
        """Put an instance that has no row where it belongs."""
        self._change()
        state = report.state
        if state == QUEUED:
            self._arrivals[report.key] = report
        elif state == "ended":
            is_news = not self._ends.has(report.key, report.run_id)
            self._ends.add(report.key, report.run_id)
            if is_news and report.status:  # else deleted, and its end was told before
                self.ended[report.status] = self.ended.get(report.status, 0) + 1
                self._ended_text = ""
        elif state == "running":  # without a grant of ours: it counts, and is asked soon
            held = Held(
                report.run_id, report.seq, report.turn, report.shard, report.since_ms, ASK_AT_ONCE
            )
            self._hold(report.key, held)
        elif state == WAITING:
            at_ms = report.wake_ms
            self._park(report, report.seq, WAITING, WAKING if at_ms else NO_LANE, at_ms)
        else:
            self._park(report, report.seq, PAUSED, NO_LANE, 0)

    # --- rows -------------------------------------------------------------------------------

    def _change(self) -> None:
        """Before the first write of an event: mark it as under way."""
        if not self._dirty:
            self._dirty = True
            self._write(1)

    def _park(self, report: StatusReport, seq: int, state: str, lane: int, at_ms: int) -> None:
        key, run_id, turn, shard = report.key, report.run_id, report.turn, report.shard
        self._rows.put(
            PARKED,
            (
                self._entity,
                key,
                run_id,
                seq,
                state,
                turn,
                lane,
                at_ms,
                report.since_ms,
                report.wake_ms,
                shard,
            ),
        )
        if state == QUEUED:
            entry = Entry(at_ms, key, run_id, seq, turn, shard)
            (self.awakened if lane == AWAKENED else self.fresh).add(entry)
            return
        if lane == WAKING:
            self._sleepers.add(at_ms, key, run_id, seq, turn, shard)
        self._count(state, 1)

    def _queue(self, report: StatusReport) -> None:
        lane = AWAKENED if report.awakened else FRESH
        self._park(report, report.seq, QUEUED, lane, report.since_ms)

    def _unqueue(self, row: Row) -> None:
        """A parked instance leaves its lane and its count; its row in PARKED is the caller's."""
        _, key, _, _, state, _, lane, at_ms, *_ = row
        self._change()
        if state == QUEUED:
            (self.awakened if lane == AWAKENED else self.fresh).remove(at_ms, key)
        else:
            if lane == WAKING:
                self._sleepers.remove(at_ms, key)
            self._count(state, -1)

    def _count(self, state: str, by: int) -> None:
        if state == WAITING:
            self.waiting += by
        else:
            self.paused += by

    def _hold(self, key: str, held: Held) -> None:
        self.held[key] = held
        self._rows.put(
            HELD,
            (self._entity, key, held.run_id, held.seq, held.turn, held.since_ms, held.shard),
        )

    def _release(self, key: str) -> None:
        self._change()
        self.released += 1
        del self.held[key]
        self._rows.delete(HELD, (self._entity, key))

    # --- slots ------------------------------------------------------------------------------

    def _settle(self, now_ms: int) -> None:
        """End of an event: place who arrived, grant what may be granted, write the counters."""
        if self._arrivals:
            self._place_arrivals(now_ms)
        room = self.target - len(self.held)
        while room > 0 and (lane := self._next_lane()) is not None:
            self._change()
            entry = lane.pop()
            self._grant(entry, now_ms)
            self._rows.delete(PARKED, (self._entity, entry.key))
            room -= 1
        if self._dirty:
            self._write_state()

    def _place_arrivals(self, now_ms: int) -> None:
        """Grant at once if there is a slot for each and nobody waits; else queue them."""
        arrivals = list(self._arrivals.values())
        self._arrivals.clear()
        self.arrived += len(arrivals)
        if not self.queued and len(arrivals) <= self.target - len(self.held):
            for report in arrivals:
                self._grant(_entry_of(report), now_ms)
            return
        for report in arrivals:
            self._queue(report)

    def _next_lane(self) -> Lane | None:
        if self.awakened.count and self.fresh.count:
            self._streak += 1
            return self.fresh if self._streak % limits.OLDEST_NEW_EVERY == 0 else self.awakened
        if self.awakened.count:
            return self.awakened
        return self.fresh if self.fresh.count else None

    def _grant(self, entry: Entry, now_ms: int) -> None:
        at_ms, key, run_id, seq, turn, shard = entry
        held = Held(run_id, seq, turn, shard, at_ms, now_ms)
        held.granted = True
        self._hold(key, held)
        self._send(held, Grant(key, run_id, turn))
        self.grants += 1

    def _send(self, held: Held, grant: Grant) -> None:
        held.flying = True
        grants = self._outgoing.get(held.shard)
        if grants is None:
            grants = self._outgoing[held.shard] = []
        grants.append(grant)

    def take_grants(self) -> GrantsByShard:
        """The grants that are to be sent, by data shard; each is given once."""
        outgoing, self._outgoing = self._outgoing, {}
        return outgoing

    def repeat_grants(self) -> bool:
        """Put grants without an answer that are not on their way among those to be sent."""
        found = False
        for key, held in self.held.items():
            if held.granted and not held.flying:
                self._send(held, Grant(key, held.run_id, held.turn))
                found = True
        return found

    def on_grant_answer(self, grants: list[Grant], accepted: list[bool], now_ms: int) -> None:
        """An Engine's shard has answered; what it refused frees its slot."""
        for grant, taken in zip(grants, accepted, strict=True):
            held = self._granted(grant)
            if held is None:
                continue
            held.flying = False
            if taken:
                held.granted = False
                held.heard_ms = now_ms
            elif held.granted:
                self._on_refusal(grant.key, held, now_ms)
        self._settle(now_ms)

    def on_grant_failed(self, grants: list[Grant]) -> None:
        """No answer came: they count as used, and are sent again by `repeat_grants`."""
        for grant in grants:
            if (held := self._granted(grant)) is not None:
                held.flying = False

    def _granted(self, grant: Grant) -> Held | None:
        held = self.held.get(grant.key)
        if held is None or held.run_id != grant.run_id or held.turn != grant.turn:
            return None
        return held

    def _on_refusal(self, key: str, held: Held, now_ms: int) -> None:
        """The Engine has moved on and will say so; if it does not soon, it is asked."""
        self.refusals += 1
        at_ms = now_ms - limits.POKE_AFTER_MS + limits.POKE_EVERY_MS
        told = StatusReport(
            key, held.run_id, -1, "waiting", held.turn, True, held.since_ms, 0, "", held.shard
        )
        self._change()
        self._park(told, -1, WAITING, WAKING, at_ms)
        self._release(key)

    # --- the lease --------------------------------------------------------------------------

    def on_lease(self, version: int, target: int, now_ms: int) -> None:
        """The Gatekeeper's answer. An older version than the one obeyed is dropped."""
        if version > self.lease_version:
            self._change()
            self.lease_version, self.target = version, target
        self._settle(now_ms)

    def set_leased(self, leased: bool) -> None:
        """Whether the Gatekeeper may believe that this SousChef holds a lease."""
        if leased != self.leased:
            self.leased = leased
            self._write_state()

    def give_back(self) -> None:
        """Obey a target of 0 from here on, before the Gatekeeper is told."""
        assert self.holding + self.queued == 0, "slots are in use or wanted"
        if self.target:
            self.target = 0
            self._write_state()

    def reserve_calls(self, count: int) -> int:
        """Make `count` more call numbers this SousChef's; gives the first."""
        first = self.calls_reserved + 1
        self.calls_reserved += count
        self._write_state()
        return first

    def _write_state(self) -> None:
        self._write(0)
        self._dirty = False

    def _write(self, partial: int) -> None:
        if not self._ended_text:
            self._ended_text = msgspec.json.encode(self.ended).decode()
        self._rows.put(
            STATE,
            (
                self._entity,
                self.lease_version,
                self.target,
                int(self.leased),
                self.calls_reserved,
                self.awakened.count,
                self.fresh.count,
                self.waiting,
                self.paused,
                self.live,
                partial,
                self._ended_text,
            ),
        )

    # --- liveness ---------------------------------------------------------------------------

    def due_pokes(self, now_ms: int) -> AskedByShard:
        """Who is to be asked how it stands; each is asked again only after a while."""
        most = limits.POKES_PER_TICK_MAX
        found = self._doubts.take_unasked(most)
        if (self.waiting or self.paused) and len(found) < most:
            found += self._sleepers.overdue(now_ms, most - len(found))
        asked = {key: (shard, run_id) for key, shard, run_id in found}
        for key, held in self.held.items():
            held.heard_ms = min(held.heard_ms, now_ms)  # the clock went back
            if held.heard_ms == ASK_AT_ONCE or (
                now_ms - held.heard_ms > limits.POKE_HELD_AFTER_MS and not held.flying
            ):
                if len(asked) >= most:
                    break
                held.heard_ms = now_ms
                asked[key] = (held.shard, held.run_id)
        self._look_ahead()
        if self._dirty:
            self._write_state()
        self.pokes += len(asked)
        pokes: AskedByShard = {}
        for key, (shard, run_id) in asked.items():
            pokes.setdefault(shard, []).append((key, run_id))
        return pokes

    def _look_ahead(self) -> None:
        if self.waiting or self.paused:
            self._sleepers.look_ahead()
        else:
            self._sleepers.next_ms = None

    def on_missing(self, asked: Iterable[tuple[str, str]], now_ms: int) -> None:
        """Those runs were asked about, and the instances do not exist: drop their rows."""
        for key, run_id in asked:
            held = self.held.get(key)
            if held is not None:
                if held.run_id == run_id:
                    self._release(key)
                continue
            row = self._rows.get(PARKED, (self._entity, key))
            if row is not None and row[2] == run_id:
                self._unqueue(row)
                self._rows.delete(PARKED, row[:2])
        self._settle(now_ms)


def _entry_of(report: StatusReport) -> Entry:
    return Entry(report.since_ms, report.key, report.run_id, report.seq, report.turn, report.shard)
