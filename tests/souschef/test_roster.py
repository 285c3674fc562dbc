"""The roster: whoever runs has a slot on it, whatever order messages come in."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.souschef.rows import DictRows
from toque.engines.ports import Grant, StatusReport
from toque.runtime import limits
from toque.runtime.errors import Overloaded
from toque.souschef.roster import Roster
from toque.souschef.rows import HELD, ORDER, PARKED, STATE, WAKING

CHEF = "acme/w/0"


class Engine:
    """The truth on one instance."""

    def __init__(self, key: str, now_ms: int) -> None:
        self.key = key
        self.run = 0
        self.start_run(now_ms)

    def start_run(self, now_ms: int) -> None:
        self.run += 1
        self.seq = self.turn = self.wake_ms = 0
        self.move("queued", now_ms)

    def move(self, state: str, now_ms: int, wake_ms: int = 0) -> None:
        self.state, self.since_ms, self.wake_ms = state, now_ms, wake_ms
        self.seq += 1
        self.turn += state == "queued"

    def report(self) -> StatusReport:
        return StatusReport(
            self.key,
            f"run-{self.run}",
            self.seq,
            self.state,  # type: ignore[arg-type]
            self.turn,
            self.turn > 1,
            self.since_ms,
            self.wake_ms,
            "complete" if self.state == "ended" else self.state,
            "d0",
        )

    def take(self, grant: Grant, now_ms: int) -> bool:
        if (grant.run_id, grant.turn) != (f"run-{self.run}", self.turn):
            return False
        if self.state == "queued":
            self.move("running", now_ms)
        return self.state == "running"


MOVES = {
    "queued": ["paused", "ended"],
    "running": ["waiting", "queued", "paused", "ended"],
    "waiting": ["queued", "paused", "ended"],
    "paused": ["queued", "waiting", "ended"],
    "ended": [],
}


class Keeping(RuleBasedStateMachine):
    """Any messages, any number of times, in any order; crashes; a store that is full.

    Messages of earlier runs come too, though not after the Engine was asked which run it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows = DictRows()
        self.now_ms = 1_000_000
        self.roster = Roster(self.rows, CHEF, self.now_ms)
        self.engines: dict[str, Engine] = {}
        self.reports: list[StatusReport] = []
        self.grants: list[Grant] = []
        self.answers: list[tuple[Grant, bool]] = []
        self.version = 0
        self.target_max = 0

    def said(self, engine: Engine) -> None:
        self.reports.append(engine.report())

    def sent(self) -> None:
        for grants in self.roster.take_grants().values():
            self.grants += grants

    def event(self, work) -> None:
        """An event of the roster; a full store ends it, and the rows are read anew."""
        try:
            work()
        except Overloaded:
            self.rows.room = None
            self.restart_roster()
        self.sent()

    @rule(number=st.integers(0, 4))
    def create(self, number: int) -> None:
        key = f"acme/w/{number}"
        if key not in self.engines:
            self.engines[key] = Engine(key, self.now_ms)
            self.said(self.engines[key])

    @precondition(lambda self: self.engines)
    @rule(data=st.data(), sleep_ms=st.sampled_from([0, 500, 50_000]))
    def move(self, data: st.DataObject, sleep_ms: int) -> None:
        engine = self.engines[data.draw(st.sampled_from(sorted(self.engines)))]
        if MOVES[engine.state]:
            state = data.draw(st.sampled_from(MOVES[engine.state]))
            wakes = state == "waiting" and sleep_ms
            engine.move(state, self.now_ms, self.now_ms + sleep_ms if wakes else 0)
            self.said(engine)

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def restart_engine(self, data: st.DataObject) -> None:
        engine = self.engines[data.draw(st.sampled_from(sorted(self.engines)))]
        self.now_ms += 1
        engine.start_run(self.now_ms)
        self.said(engine)

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def deliver_reports(self, data: st.DataObject) -> None:
        batch = data.draw(st.lists(st.sampled_from(self.reports), min_size=1, max_size=4))
        self.event(lambda: self.roster.on_reports(batch, self.now_ms))

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), answered=st.booleans())
    def deliver_grant(self, data: st.DataObject, answered: bool) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        engine = self.engines.get(grant.key)
        taken = engine is not None and engine.take(grant, self.now_ms)
        if engine is not None and taken:
            self.said(engine)
        if answered:
            self.answers.append((grant, taken))
        else:
            self.event(lambda: self.roster.on_grant_failed([grant]))

    @precondition(lambda self: self.engines)
    @rule(data=st.data(), tells=st.booleans())
    def go_on(self, data: st.DataObject, tells: bool) -> None:
        """All goes well for once: what leads to deep states."""
        engine = self.engines[data.draw(st.sampled_from(sorted(self.engines)))]
        self.event(lambda: self.roster.on_reports([engine.report()], self.now_ms))
        for grant in [g for g in self.grants if g.key == engine.key][-1:]:
            if engine.state == "queued" and engine.take(grant, self.now_ms):
                self.said(engine)
                self.answers.append((grant, True))
        if tells:
            self.event(lambda: self.roster.on_reports([engine.report()], self.now_ms))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def deliver_answer(self, data: st.DataObject) -> None:
        grant, taken = data.draw(st.sampled_from(self.answers))
        self.event(lambda: self.roster.on_grant_answer([grant], [taken], self.now_ms))

    @rule()
    def repeat_grants(self) -> None:
        self.event(self.roster.repeat_grants)

    @rule(slots=st.integers(0, 4))
    def lease(self, slots: int) -> None:
        self.version += 1
        self.target_max = max(self.target_max, slots)
        self.event(lambda: self.roster.on_lease(self.version, slots, self.now_ms))

    @rule(later_ms=st.sampled_from([100, 20_000, 100_000]), louder=st.booleans())
    def poke(self, later_ms: int, louder: bool) -> None:
        self.now_ms += later_ms
        asked: list[tuple[str, str]] = []

        def look() -> None:
            asked.extend(
                pair for found in self.roster.due_pokes(self.now_ms).values() for pair in found
            )

        self.event(look)
        for key, _ in asked:
            engine = self.engines[key]
            engine.seq += louder
            run_id = engine.report().run_id
            self.reports = [r for r in self.reports if r.key != key or r.run_id == run_id]
            self.said(engine)

    @rule()
    def restart_roster(self) -> None:
        self.roster = Roster(self.rows, CHEF, self.now_ms)
        self.sent()

    @rule(room=st.integers(0, 8))
    def fill_the_store(self, room: int) -> None:
        self.rows.room = room

    @invariant()
    def whoever_runs_has_a_slot(self) -> None:
        running = {key for key, engine in self.engines.items() if engine.state == "running"}
        assert running <= set(self.roster.held)

    @invariant()
    def rows_agree(self) -> None:
        if self.rows.room is not None:
            return
        assert {row[1] for row in self.rows.all(HELD)} == set(self.roster.held)
        parked = {row[1]: row for row in self.rows.all(PARKED)}
        assert not set(parked) & set(self.roster.held)
        ordered = {row[3]: row for row in self.rows.all(ORDER)}
        assert len(ordered) == len(self.rows.all(ORDER))
        assert set(ordered) == {key for key, row in parked.items() if row[6] >= 0}
        kinds = [(row[4], row[6]) for row in parked.values()]
        assert self.roster.awakened.count == kinds.count(("queued", 0))
        assert self.roster.fresh.count == kinds.count(("queued", 1))
        assert self.roster.waiting == sum(state == "waiting" for state, _ in kinds)
        assert self.roster.paused == sum(state == "paused" for state, _ in kinds)
        (state,) = self.rows.all(STATE) or [(0,) * 12]
        assert (state[9] if state[0] else 0) == self.roster.live

    @invariant()
    def no_grant_above_the_lease(self) -> None:
        granted = sum(held.granted for held in self.roster.held.values())
        assert granted <= max(self.target_max, 0) or len(self.roster.held) <= 5

    def teardown(self) -> None:
        """With messages that arrive, all end, and no slot is held."""
        self.rows.room = None
        self.restart_roster()
        self.lease(2)
        self.roster.on_grant_failed(self.grants)
        for _ in range(60):
            self.now_ms += 30_000
            for engine in self.engines.values():
                if engine.state == "running":
                    engine.move("ended", self.now_ms)
                elif engine.state in ("waiting", "paused"):
                    engine.move("queued", self.now_ms)
            asked = [
                key for found in self.roster.due_pokes(self.now_ms).values() for key, _ in found
            ]
            told = [self.engines[key].report() for key in asked]
            told += [engine.report() for engine in self.engines.values()]
            self.roster.on_reports(told, self.now_ms)
            self.roster.repeat_grants()
            for grants in self.roster.take_grants().values():
                taken = [self.engines[g.key].take(g, self.now_ms) for g in grants]
                self.roster.on_grant_answer(grants, taken, self.now_ms)
            if self.roster.live == 0 and all(e.state == "ended" for e in self.engines.values()):
                return
        raise AssertionError(f"{self.roster.live} left: {self.rows.tables}")


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def report(state: str, seq: int, run: str = "r1", since_ms: int = 1_000, **more) -> StatusReport:
    values = {"turn": 1, "awakened": False, "wake_ms": 0, "status": state, "shard": "d0", **more}
    key = values.pop("key", "acme/w/x")
    return StatusReport(key=key, run_id=run, seq=seq, state=state, since_ms=since_ms, **values)


def roster_with(slots: int, *reports: StatusReport) -> Roster:
    roster = Roster(DictRows(), CHEF, 1_000)
    roster.on_lease(1, slots, 1_000)
    roster.on_reports(reports, 1_000)
    return roster


def sent(roster: Roster) -> list[str]:
    return [grant.key for grants in roster.take_grants().values() for grant in grants]


def running(slots: int = 1) -> Roster:
    """A roster with one instance that runs, in turn 2."""
    roster = roster_with(slots, report("queued", 3, turn=2, awakened=True))
    roster.on_reports([report("running", 4, turn=2)], 1_000)
    roster.take_grants()
    return roster


def test_reports_of_earlier_turns_free_no_slot() -> None:
    roster = running()
    roster.on_lease(2, 0, 1_000)
    roster.on_reports([report("waiting", 2), report("queued", 1)], 2_000)
    roster.on_reports([report("queued", 4, turn=2)], 2_000)
    assert roster.holding == 1


def test_a_request_that_was_granted_and_is_said_again_louder_frees_no_slot() -> None:
    roster = roster_with(1, report("queued", 1))
    roster.on_lease(2, 0, 1_000)
    roster.on_reports([report("queued", 2)], 2_000)
    assert roster.holding == 1


def test_a_new_request_of_one_that_ran_gives_its_slot_to_the_queue() -> None:
    roster = running()
    roster.on_reports([report("queued", 1, key="acme/w/y", awakened=True, since_ms=500)], 2_000)
    assert sent(roster) == []
    roster.on_reports([report("queued", 5, turn=3, awakened=True)], 3_000)
    assert sent(roster) == ["acme/w/y"]


def test_a_refused_instance_is_asked_how_it_stands() -> None:
    roster = roster_with(1, report("queued", 1))
    roster.on_grant_answer([Grant("acme/w/x", "r1", 1)], [False], 2_000)
    assert roster.holding == 0
    assert roster.due_pokes(2_000 + limits.POKE_EVERY_MS) == {"d0": [("acme/w/x", "r1")]}
    roster.on_reports([report("queued", 1)], 9_000)  # the Engine had not moved on, after all
    assert sent(roster)[-1] == "acme/w/x"


def test_late_words_of_a_run_that_ended_are_not_heard() -> None:
    roster = running()
    roster.on_reports([report("ended", 5, status="complete")], 2_000)
    roster.on_reports([report("queued", 3, turn=2), report("running", 4, turn=2)], 3_000)
    assert (roster.live, roster.ended) == (0, {"complete": 1})
    roster.on_reports([report("ended", 5, status="complete")], 3_000)
    assert roster.ended == {"complete": 1}


def test_an_older_run_is_not_believed_until_the_engine_was_asked() -> None:
    roster = roster_with(1, report("queued", 1, "r2", since_ms=5_000))
    stale = [report("waiting", 3, "r1", since_ms=4_000), report("ended", 4, "r1", since_ms=4_500)]
    roster.on_reports(stale, 6_000)
    roster.on_reports(stale, 6_000)
    assert roster.held["acme/w/x"].run_id == "r2"
    assert roster.due_pokes(6_000) == {"d0": [("acme/w/x", "r2")]}
    roster.on_reports([report("queued", 1, "r2", since_ms=5_000)], 7_000)  # the answer
    roster.on_reports(stale, 7_000)
    assert roster.held["acme/w/x"].run_id == "r2"


def test_a_newer_run_is_believed_though_the_clock_was_set_back() -> None:
    roster = roster_with(1, report("queued", 1, "r1", since_ms=5_000))
    newer = report("queued", 1, "r2", since_ms=100)
    roster.on_reports([newer], 6_000)
    roster.due_pokes(6_000)
    roster.on_reports([newer], 7_000)  # the answer
    assert roster.held["acme/w/x"].run_id == "r2"


def test_who_runs_is_asked_in_time_though_the_clock_was_set_back() -> None:
    roster = roster_with(1, report("queued", 1))
    roster.on_grant_answer(roster.take_grants()["d0"], [True], 3_600_000)
    assert not roster.due_pokes(1_000)
    assert roster.due_pokes(1_001 + limits.POKE_HELD_AFTER_MS) == {"d0": [("acme/w/x", "r1")]}


def test_a_parked_run_in_doubt_is_asked_even_after_a_crash() -> None:
    rows = DictRows()
    roster = Roster(rows, CHEF, 1_000)
    roster.on_reports([report("paused", 2, "r1", since_ms=5_000)], 5_000)
    roster.on_reports([report("queued", 1, "r2", since_ms=100)], 6_000)
    again = Roster(rows, CHEF, 7_000)
    assert again.due_pokes(7_000) == {"d0": [("acme/w/x", "r1")]}


def test_a_run_that_came_back_late_goes_when_its_successors_end_is_told_again() -> None:
    roster = roster_with(0, report("ended", 9, "r2", since_ms=5_000))
    roster.on_reports([report("queued", 1, "r1", since_ms=1_000)], 6_000)  # it was under way long
    assert roster.live == 1
    roster.on_lease(2, 1, 6_000)
    (grant,) = roster.take_grants()["d0"]
    roster.on_grant_answer([grant], [False], 6_000)
    now_ms, ended = 6_000, dict(roster.ended)
    for _ in range(3):
        now_ms += limits.POKE_AFTER_MS + 1
        if roster.due_pokes(now_ms):
            roster.on_reports([report("ended", 9, "r2", since_ms=5_000)], now_ms)
    assert (roster.live, roster.holding) == (0, 0)
    assert roster.ended == ended


@pytest.mark.parametrize("copies", [1, 2])
def test_a_paused_run_that_came_back_late_goes_though_nobody_speaks_for_it(copies: int) -> None:
    roster = roster_with(0, report("ended", 9, "r2", since_ms=5_000))
    for _ in range(copies):
        roster.on_reports([report("paused", 7, "r1", since_ms=1_000)], 6_000)  # r2 took its place
    assert roster.paused == 1
    for now_ms in range(6_001, 6_001 + 4 * limits.POKE_AFTER_MS, limits.POKE_AFTER_MS + 1):
        if roster.due_pokes(now_ms):
            roster.on_reports([report("ended", 9, "r2", since_ms=5_000)], now_ms)
    assert roster.live == 0


@pytest.mark.parametrize("wake_ms", [0, 9_000_000])
@pytest.mark.parametrize("first", ["queued", "paused", "waiting"])
@pytest.mark.parametrize("then", ["paused", "waiting"])
def test_late_news_that_follows_late_news_is_asked_about(
    first: str, then: str, wake_ms: int
) -> None:
    roster = roster_with(0)  # it has forgotten that the run has ended
    roster.on_reports([report(first, 6, wake_ms=wake_ms * (first == "waiting"))], 6_000)
    roster.on_reports([report(then, 7, wake_ms=wake_ms * (then == "waiting"))], 6_000)
    assert roster.due_pokes(6_001) == {"d0": [("acme/w/x", "r1")]}
    roster.on_reports([report("ended", 9, since_ms=5_000)], 6_002)
    assert roster.live == 0


@pytest.mark.parametrize("wake_ms", [0, 9_000_000])
def test_a_wait_that_came_back_late_goes_though_it_wakes_late_or_never(wake_ms: int) -> None:
    roster = roster_with(0)  # it has forgotten that the run has ended
    roster.on_reports([report("waiting", 7, wake_ms=wake_ms)], 6_000)
    assert roster.waiting == 1
    assert roster.due_pokes(6_000) == {"d0": [("acme/w/x", "r1")]}
    roster.on_reports([report("ended", 9, since_ms=5_000)], 6_000)
    assert roster.live == 0


def test_a_paused_newcomer_is_asked_until_it_has_said_so_again() -> None:
    paused = report("paused", 2)
    roster = roster_with(0, paused)
    assert roster.due_pokes(6_000) == {"d0": [("acme/w/x", "r1")]}
    assert roster.due_pokes(6_001 + limits.POKE_AFTER_MS)
    roster.on_reports([paused], 20_000)
    for now_ms in (40_000, 60_000):
        assert not roster.due_pokes(now_ms)
    assert roster.paused == 1
    roster.on_reports([report("waiting", 3, wake_ms=90_000)], 70_000)
    assert (roster.paused, roster.waiting) == (0, 1)


def test_one_grant_in_eight_is_the_oldest_new_ones() -> None:
    roster = roster_with(0)
    for n in range(40):
        told = [
            report("queued", 1, key=f"acme/w/old-{n}", awakened=True, turn=2, since_ms=100 + n),
            report("queued", 1, key=f"acme/w/new-{n}", since_ms=50 + n),
        ]
        roster.on_reports(told, 1_000)
    roster.on_lease(2, 32, 1_000)
    order = sent(roster)
    assert [key for key in order if "new" in key] == [f"acme/w/new-{n}" for n in range(4)]
    assert [key for key in order if "old" in key] == [f"acme/w/old-{n}" for n in range(28)]


def test_a_wait_is_poked_only_when_it_is_overdue_and_then_seldom() -> None:
    told = [
        report("waiting", 2, key="acme/w/timer", wake_ms=10_000),
        report("waiting", 2, key="acme/w/event"),
    ]
    roster = roster_with(1, *told)
    assert roster.due_pokes(1_000), "nobody knew them: it may be late news of runs that have ended"
    roster.on_reports(told, 1_000)
    roster.due_pokes(1_000)
    assert roster.next_wake_ms == 10_000
    assert roster.due_pokes(9_999 + limits.POKE_AFTER_MS) == {}
    due_ms = 10_000 + limits.POKE_AFTER_MS
    assert roster.due_pokes(due_ms) == {"d0": [("acme/w/timer", "r1")]}
    assert roster.due_pokes(due_ms + limits.POKE_EVERY_MS) == {}
    assert roster.due_pokes(due_ms + limits.POKE_AFTER_MS) != {}


def test_a_stray_row_in_the_order_of_waking_fails_and_is_not_asked_for_ever() -> None:
    roster = roster_with(1, report("waiting", 2, key="acme/w/timer", wake_ms=10_000))
    (row,) = roster._rows.scan(ORDER, (CHEF, WAKING), limit=2)
    roster._rows.put(ORDER, (*row[:2], 9_000, *row[3:]))
    with pytest.raises(AssertionError, match="twice"):
        roster.due_pokes(10_000 + limits.POKE_AFTER_MS)


def test_a_tick_asks_no_more_than_its_bound_and_gets_round_to_all() -> None:
    count = limits.POKES_PER_TICK_MAX + 100
    reports = [report("waiting", 2, key=f"acme/w/{n}", wake_ms=n + 1) for n in range(count)]
    roster = roster_with(1, *reports)
    asked: set[str] = set()
    for tick in range(2):
        found = roster.due_pokes(1_000_000 + tick)["d0"]
        assert len(found) <= limits.POKES_PER_TICK_MAX
        asked |= {key for key, _ in found}
    assert len(asked) == count


def test_a_slot_taken_without_a_grant_counts_and_is_asked_about() -> None:
    roster = roster_with(1, report("running", 7))
    assert roster.holding == 1
    assert roster.due_pokes(1_001) == {"d0": [("acme/w/x", "r1")]}
    roster.on_missing([("acme/w/x", "another run")], 1_002)
    assert roster.holding == 1
    roster.on_missing([("acme/w/x", "r1")], 1_002)
    assert roster.holding == 0


def test_memory_holds_a_window_of_a_long_queue() -> None:
    rows = DictRows()
    roster = Roster(rows, CHEF, 0)
    count = 5 * limits.QUEUE_WINDOW_ROWS
    for n in range(count):
        roster.on_reports([report("queued", 1, key=f"acme/w/{n}", since_ms=n)], n)
    assert roster.fresh.count == count
    assert roster.fresh.in_memory <= 2 * limits.QUEUE_WINDOW_ROWS
    order: list[str] = []
    for step in range(10):
        slots = (step + 1) * count // 10
        roster.on_lease(step + 1, slots, count)
        order += sent(roster)
        if step == 4:
            roster = Roster(rows, CHEF, count)
    assert order == [f"acme/w/{n}" for n in range(count)]


def test_the_fast_way_takes_few_writes() -> None:
    """A create that finds a slot: one row in, one row out, and the counters once per event."""
    rows = DictRows()
    roster = Roster(rows, CHEF, 0)
    roster.on_lease(1, 1_000, 0)
    before = rows.writes
    roster.on_reports([report("queued", 1, key=f"acme/w/{n}") for n in range(100)], 1)
    roster.on_reports([report("running", 2, key=f"acme/w/{n}") for n in range(100)], 2)
    roster.on_reports([report("ended", 3, key=f"acme/w/{n}") for n in range(100)], 3)
    assert rows.writes - before == 204
    assert roster.live == 0
