"""The lease ledger: safety under any order of messages, and how fast shares move."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from toque.gatekeeper.messages import CycleReply, CycleRequest
from toque.gatekeeper.slots import GatekeeperFaults, LeaseBook, Outcome
from toque.runtime import limits

NAMES = ["acme/w1/0", "acme/w1/1", "acme/w2/0", "acme/w3/0"]


class Chef:
    """A SousChef as the protocol wants it: obeys its lease, reports the truth."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 1
        self.seq = self.version = self.target = self.holding = self.awakened = self.fresh = 0

    def request(self, leaving: bool = False, may_wait: bool = False) -> CycleRequest:
        self.seq += 1
        if leaving:
            self.target = 0
        return CycleRequest(
            self.name,
            self.incarnation,
            self.seq,
            self.awakened,
            self.fresh,
            1 if self.awakened else 0,
            1 if self.fresh else 0,
            self.holding,
            self.version,
            self.target,
            leaving,
            may_wait=may_wait,
        )

    def adopt(self, reply: CycleReply) -> None:
        if reply.lease_version > self.version:
            self.version, self.target = reply.lease_version, reply.target

    def start(self) -> int:
        """Start what the lease lets it start; returns how many."""
        started = 0
        while self.holding < self.target and self.awakened + self.fresh:
            if self.awakened:
                self.awakened -= 1
            else:
                self.fresh -= 1
            self.holding += 1
            started += 1
        return started


class Table:
    """The durable rows: what a book that is opened again is loaded from."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple] = {}

    def write(self, outcome: Outcome) -> None:
        if (h := outcome.changed) is not None:
            row = (h.souschef, h.version, h.target, h.ledger, h.incarnation, h.seq, h.left)
            self.rows[h.souschef] = row
        for souschef in outcome.forgotten:
            self.rows.pop(souschef, None)

    def open(self, old: LeaseBook) -> LeaseBook:
        book = LeaseBook(old.limit, old.faults)
        for workflow, entry in old.workflows.items():
            book.set_workflow(workflow, entry.weight, entry.running_max)
        for souschef in sorted(self.rows):
            book.load(*self.rows[souschef])
        return book


class Leasing(RuleBasedStateMachine):
    """Any order of calls, losses, repeats, restarts and changed limits."""

    def __init__(self) -> None:
        super().__init__()
        self.book = LeaseBook(10)
        self.table = Table()
        self.now_ms = 1_000_000
        self.chefs = [Chef(name) for name in NAMES]
        self.old: list[CycleRequest] = []
        self.late: list[tuple[Chef, CycleReply]] = []
        self.limit_was_lowered = False

    def call(self, chef: Chef, request: CycleRequest, lost: bool) -> None:
        outcome = self.book.on_request(request, self.now_ms)
        self.table.write(outcome)
        self.old.append(request)
        if lost:
            self.late.append((chef, outcome.reply))
        else:
            chef.adopt(outcome.reply)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def get_a_late_reply(self, data: st.DataObject) -> None:
        chef, reply = data.draw(st.sampled_from(self.late))
        chef.adopt(reply)

    @rule(who=st.integers(0, 3), awakened=st.integers(0, 6), fresh=st.integers(0, 12))
    def demand(self, who: int, awakened: int, fresh: int) -> None:
        self.chefs[who].awakened += awakened
        self.chefs[who].fresh += fresh

    @rule(who=st.integers(0, 3), lost=st.booleans(), may_wait=st.booleans())
    def cycle(self, who: int, lost: bool, may_wait: bool) -> None:
        chef = self.chefs[who]
        self.call(chef, chef.request(may_wait=may_wait), lost)

    @rule(who=st.integers(0, 3), lost=st.booleans(), is_last=st.booleans())
    def review(self, who: int, lost: bool, is_last: bool) -> None:
        chef = self.chefs[who]
        holder = self.book.holders.get(chef.name)
        if holder is None or holder.left:
            return
        outcome = self.book.review(chef.name, self.now_ms, is_last)
        self.table.write(outcome)
        if lost:
            self.late.append((chef, outcome.reply))
        else:
            chef.adopt(outcome.reply)

    @rule(who=st.integers(0, 3), lost=st.booleans())
    def leave(self, who: int, lost: bool) -> None:
        chef = self.chefs[who]
        if chef.holding + chef.awakened + chef.fresh == 0:
            self.call(chef, chef.request(leaving=True), lost)

    @rule(who=st.integers(0, 3))
    def start(self, who: int) -> None:
        before = sum(chef.holding for chef in self.chefs)
        started = self.chefs[who].start()
        if not self.limit_was_lowered:
            assert not started or before + started <= self.book.limit

    @rule(who=st.integers(0, 3), count=st.integers(1, 8))
    def end(self, who: int, count: int) -> None:
        chef = self.chefs[who]
        chef.holding -= min(chef.holding, count)

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def repeat_an_old_request(self, data: st.DataObject) -> None:
        self.table.write(self.book.on_request(data.draw(st.sampled_from(self.old)), self.now_ms))

    @rule(who=st.integers(0, 3))
    def restart_holder(self, who: int) -> None:
        self.chefs[who].incarnation += 1
        self.chefs[who].seq = 0

    @rule()
    def restart_book(self) -> None:
        self.book = self.table.open(self.book)

    @rule(by_ms=st.sampled_from([10, 1_000, 7_000, 4_000_000]))
    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(limit=st.integers(0, 20))
    def set_limit(self, limit: int) -> None:
        self.limit_was_lowered |= limit < self.book.limit
        self.book.limit = limit

    @rule(which=st.sampled_from(["acme/w1", "acme/w2"]), weight=st.integers(1, 3))
    def set_weight(self, which: str, weight: int) -> None:
        self.book.set_workflow(which, weight, 0)

    @invariant()
    def ledger_bounds_what_is_held(self) -> None:
        for chef in self.chefs:
            holder = self.book.holders.get(chef.name)
            ledger = holder.ledger if holder else 0
            assert max(chef.holding, chef.target) <= ledger
        if not self.limit_was_lowered:
            assert self.book.ledger <= self.book.limit

    @invariant()
    def sums_are_right(self) -> None:
        book, holders = self.book, list(self.book.holders.values())
        assert book.ledger == sum(h.ledger for h in holders)
        assert book.wanted == sum(h.wanted for h in holders)
        assert book.active == sum(not h.left for h in holders)
        assert book.unmet == sum(h.counts and h.needs > h.target for h in holders)
        assert book.kept == sum(h.kept for h in holders)
        assert book.kept <= book.limit // limits.SLOTS_KEPT_PART or self.limit_was_lowered

    def teardown(self) -> None:
        """Left alone, everyone gets what it asks for in the end, and all comes back."""
        if not self.book.limit:
            self.book.limit = 1
        for _ in range(2_000):
            self.now_ms += 1_000
            for chef in self.chefs:
                self.call(chef, chef.request(), lost=False)
                chef.start()
                chef.holding = max(0, chef.holding - 2)
            if not any(chef.holding + chef.awakened + chef.fresh for chef in self.chefs):
                break
        else:
            raise AssertionError("demand was left over")
        for _ in range(2):
            for chef in self.chefs:
                self.call(chef, chef.request(leaving=True), lost=False)
        assert self.book.ledger == 0
        assert self.book.active == 0


TestLeasing = Leasing.TestCase
TestLeasing.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def settle(book: LeaseBook, chefs: list[Chef], cycles: int, now_ms: int = 0) -> int:
    """So many cycles in which nothing ends except what is above its target."""
    for _ in range(cycles):
        now_ms += 1_000
        for chef in chefs:
            chef.holding = min(chef.holding, chef.target)
        for chef in chefs:
            chef.adopt(book.on_request(chef.request(), now_ms).reply)
            chef.start()
    return now_ms


def test_a_newcomer_gets_its_share_within_three_cycles() -> None:
    """Two SousChefs per workflow; A has 1,000 queued and ends 5 of its 20 each 50 ms."""
    book = LeaseBook(20)
    a = [Chef("acme/a/0"), Chef("acme/a/1")]
    b = [Chef("acme/b/0"), Chef("acme/b/1")]
    for chef in a:
        chef.fresh = 500
    now_ms = settle(book, a, 4)
    assert [chef.holding for chef in a] == [10, 10]
    for chef in b:
        chef.fresh = 5
    phases = [(b[0], 0), (b[1], 100), (a[0], 400), (a[1], 900)]
    done_ms = None
    for tick_ms in range(0, 5_000, 50):
        for chef in a:
            chef.holding -= min(chef.holding, 3)  # 200 ms each
        for chef, phase_ms in phases:
            if tick_ms % 1_000 == phase_ms:
                chef.adopt(book.on_request(chef.request(), now_ms + tick_ms).reply)
        for chef in a + b:
            chef.start()
        assert sum(chef.holding for chef in a + b) <= 20
        if done_ms is None and sum(chef.fresh for chef in b) == 0:
            done_ms = tick_ms
    assert done_ms is not None
    assert done_ms <= 3_000


def loud_and_newcomers(names: str) -> tuple[LeaseBook, Chef, list[Chef]]:
    """One that holds all 40 slots and has more to do, and those who now want 10 each."""
    book, loud = LeaseBook(40), Chef("acme/loud/0")
    loud.fresh = 1_000
    settle(book, [loud], 3)
    newcomers = [Chef(f"acme/{name}/0") for name in names]
    for chef in newcomers:
        chef.fresh = 10
        chef.adopt(book.on_request(chef.request(may_wait=True), 3_100).reply)
    return book, loud, newcomers


def test_free_slots_are_shared_by_those_who_are_to_have_more() -> None:
    """Not: the first to call has its whole share, and the last nothing for another cycle."""
    book, loud, newcomers = loud_and_newcomers("abcdefghi")
    loud.adopt(book.review(loud.name, 3_200, False).reply)
    assert loud.target == 4
    loud.holding = 31  # nine have ended when it calls
    loud.adopt(book.on_request(loud.request(), 4_000).reply)
    for chef in newcomers:
        chef.adopt(book.on_request(chef.request(), 4_100).reply)
    assert [chef.target for chef in newcomers] == [1] * 9


def test_free_slots_do_not_wait_for_one_who_does_not_call() -> None:
    book, loud, (_gone, here) = loud_and_newcomers("ab")
    loud.adopt(book.review(loud.name, 3_200, False).reply)
    loud.holding = 38
    loud.adopt(book.on_request(loud.request(), 4_000).reply)
    here.adopt(book.on_request(here.request(), 4_100).reply)
    assert here.target == 1
    here.adopt(book.on_request(here.request(), 5_200).reply)
    assert here.target == 2


def test_a_call_that_may_wait_lowers_nothing_and_a_review_does() -> None:
    """So that those who come together are heard together."""
    book, loud, _ = loud_and_newcomers("a")
    reply = book.on_request(loud.request(may_wait=True), 4_000).reply
    assert (reply.lease_version, reply.target) == (loud.version, 40)
    reply = book.review(loud.name, 4_100, False).reply
    assert (reply.lease_version, reply.target) == (loud.version + 1, 30)
    assert book.ledger == 40  # until it has confirmed that


def test_a_raise_by_little_is_told_at_the_last_review() -> None:
    """The rest may follow; who has none at all has them at once."""
    book, loud, newcomers = loud_and_newcomers("abcdefghi")
    loud.adopt(book.review(loud.name, 3_200, False).reply)
    loud.holding = 4
    loud.adopt(book.on_request(loud.request(may_wait=True), 4_000).reply)
    for chef in newcomers:
        chef.adopt(book.review(chef.name, 4_100, False).reply)
        assert chef.target == 4
        chef.holding, chef.fresh = 1, 0
    for chef in newcomers:
        chef.adopt(book.on_request(chef.request(), 5_000).reply)
    book.on_request(newcomers[0].request(), 6_000)  # has confirmed: three of 27 are free
    assert book.review(loud.name, 6_100, False).reply.target == 4
    assert book.review(loud.name, 6_900, True).reply.target == 7


def test_headroom_lets_a_create_start_without_a_call() -> None:
    book = LeaseBook(50_000)
    chef = Chef("acme/w/0")
    settle(book, [chef], 1)
    assert chef.target == 25_000  # half of what is free, for the one holder there is
    chef.fresh = 100
    assert chef.start() == 100


def test_headroom_is_shared_and_bounded_by_half_of_what_is_free() -> None:
    book = LeaseBook(1_000)
    chefs = [Chef(f"acme/w{n}/0") for n in range(10)]
    settle(book, chefs, 4)
    assert all(chef.target == 50 for chef in chefs)


def test_no_headroom_while_demand_is_unmet() -> None:
    book = LeaseBook(10)
    busy, idle = Chef("acme/a/0"), Chef("acme/b/0")
    busy.fresh = 50
    settle(book, [busy, idle], 4)
    assert (busy.target, idle.target) == (10, 0)


def test_a_lowered_limit_starts_nothing_until_the_count_is_below_it() -> None:
    book = LeaseBook(20)
    chefs = [Chef("acme/a/0"), Chef("acme/b/0")]
    for chef in chefs:
        chef.fresh = 100
    settle(book, chefs, 4)
    assert sum(chef.holding for chef in chefs) == 20
    book.limit = 6
    now_ms = 10_000
    while (running := sum(chef.holding for chef in chefs)) > 6:
        now_ms += 1_000
        for chef in chefs:
            chef.adopt(book.on_request(chef.request(), now_ms).reply)
            chef.start()
        assert sum(chef.holding for chef in chefs) == running
        max(chefs, key=lambda chef: chef.holding).holding -= 1
    settle(book, chefs, 4, now_ms)
    assert sum(chef.holding for chef in chefs) == 6


def test_a_silent_holder_keeps_its_lease_but_its_demand_counts_no_more() -> None:
    book = LeaseBook(20)
    gone, here = Chef("acme/a/0"), Chef("acme/b/0")
    gone.fresh, here.fresh = 100, 100
    now_ms = settle(book, [gone], 3)
    now_ms = settle(book, [gone, here], 4, now_ms)
    assert (gone.target, here.target) == (10, 10)
    gone.holding = 4  # then it falls silent
    settle(book, [here], 10, now_ms + limits.LEASE_SILENT_PERIODS * 1_000)
    assert here.target == 10
    assert book.holders[gone.name].ledger == 10


def test_the_demand_of_the_silent_leaves_room_to_others() -> None:
    book = LeaseBook(20)
    gone, here = Chef("acme/a/0"), Chef("acme/b/0")
    settle(book, [gone], 1)  # leases headroom only, then asks for much and is never heard again
    now_ms = settle(book, [here, gone], 3, 1_000)
    held = gone.target
    gone.fresh, here.fresh = 100, 100
    book.on_request(gone.request(), now_ms + 10)
    settle(book, [here], 3, now_ms)
    assert here.target <= 10
    now_ms += limits.LEASE_SILENT_PERIODS * 1_000 + 3_000
    settle(book, [here], 2, now_ms)
    assert here.target == 20 - book.holders[gone.name].ledger
    assert held <= book.holders[gone.name].ledger


def test_calls_per_second_are_bounded_by_a_longer_period() -> None:
    book = LeaseBook(50_000)
    most = limits.GATEKEEPER_CALLS_PER_SECOND_MAX
    count = 3 * (most - most // limits.FRONT_END_CALLS_PART)
    reply = None
    for n in range(count):
        reply = book.on_request(Chef(f"acme/w{n}/0").request(), 0).reply
    assert reply is not None
    assert reply.period_ms == 3_000


def test_a_workflow_limit_binds_it_and_takes_nothing_from_others() -> None:
    book = LeaseBook(20)
    book.set_workflow("acme/a", 1, 4)
    a, b = [Chef("acme/a/0"), Chef("acme/a/1")], Chef("acme/b/0")
    for chef in a:
        chef.fresh = 100
    b.fresh = 100
    settle(book, [*a, b], 5)
    assert sum(chef.target for chef in a) == 4
    assert b.target == 16


def test_of_a_workflow_that_is_deleted_nothing_is_kept() -> None:
    book = LeaseBook(10)
    for number in range(3):
        book.set_workflow(f"acme/{number}", 3, 5)
        book.set_workflow(f"acme/{number}", 1, 0)
    assert not book.workflows
    chef = Chef("acme/w/0")
    chef.fresh = 1
    settle(book, [chef], 1)
    book.set_workflow("acme/w", 1, 0)
    assert [*book.workflows] == ["acme/w"]


def test_weights_divide_contended_slots() -> None:
    book = LeaseBook(40)
    book.set_workflow("acme/a", 3, 0)
    chefs = [Chef("acme/a/0"), Chef("acme/b/0")]
    for chef in chefs:
        chef.fresh = 1_000
    settle(book, chefs, 5)
    assert [chef.target for chef in chefs] == [30, 10]


def test_more_workflows_than_slots_take_turns() -> None:
    """Odd slots go round, slowly enough to be handed over."""
    book = LeaseBook(1)
    chefs = [Chef(f"acme/w{n}/0") for n in range(3)]
    started = [0] * 3
    now_ms = 0
    for chef in chefs:
        chef.fresh = 10_000
    for _ in range(60):
        now_ms += 1_000
        for n, chef in enumerate(chefs):
            chef.adopt(book.on_request(chef.request(), now_ms).reply)
            started[n] += chef.start()
            chef.holding = 0
    assert min(started) >= 5


def test_leaving_gives_the_lease_back_and_its_row_goes_after_a_while() -> None:
    book = LeaseBook(20)
    chef = Chef("acme/w/0")
    now_ms = settle(book, [chef], 2)
    book.on_request(chef.request(leaving=True), now_ms)
    assert (book.ledger, book.active) == (0, 0)
    other = Chef("acme/x/0")
    outcome = book.on_request(other.request(), now_ms + limits.LEASE_FORGET_MS + 5_000)
    assert outcome.forgotten == [chef.name]
    chef.fresh = 3
    settle(book, [chef], 1, now_ms + limits.LEASE_FORGET_MS + 6_000)
    assert chef.target >= 3


def test_giving_back_counts_from_the_holders_word() -> None:
    """The leaving call is lost; the holder comes back, obeying nothing under the same version."""
    book = LeaseBook(20)
    chef = Chef("acme/w/0")
    settle(book, [chef], 2)
    assert chef.target == 10
    chef.request(leaving=True)  # never arrives
    chef.fresh = 1
    settle(book, [chef], 1, 10_000)
    assert chef.target == 10  # the same as before, yet a new version


def test_an_entry_is_not_lowered_before_the_newest_version_is_confirmed() -> None:
    book = LeaseBook(20)
    chef = Chef("acme/w/0")
    chef.fresh = 20
    lost = book.on_request(chef.request(), 0).reply
    assert lost.target == 20
    chef.fresh = 2
    lower = book.on_request(chef.request(), 1_000).reply  # obeys version 0 still
    assert lower.target < 20
    assert book.ledger == 20
    chef.adopt(lower)
    book.on_request(chef.request(), 2_000)
    assert book.ledger == chef.target


def test_a_stale_request_changes_nothing_and_gets_the_lease() -> None:
    book = LeaseBook(20)
    chef = Chef("acme/w/0")
    chef.fresh = 3
    stale = chef.request()
    chef.fresh = 9
    newest = book.on_request(chef.request(), 0).reply
    outcome = book.on_request(stale, 1_000)
    assert (outcome.changed, outcome.reply) == (None, newest)
    assert book.holders[chef.name].fresh == 9


def test_a_report_that_changes_nothing_writes_nothing() -> None:
    book = LeaseBook(20)
    chef = Chef("acme/w/0")
    now_ms = settle(book, [chef], 3)
    assert book.on_request(chef.request(), now_ms).changed is None


def test_a_lease_that_the_book_does_not_know_is_taken_on_the_holders_word() -> None:
    book = LeaseBook(20)
    chef = Chef("acme/w/0")
    chef.version, chef.target, chef.holding = 7, 6, 5
    outcome = book.on_request(chef.request(), 0)
    assert outcome.reply.lease_version == 8
    assert book.ledger >= 6


def test_the_fault_grants_outside_the_ledger() -> None:
    book = LeaseBook(2, GatekeeperFaults(grant_outside_ledger=True))
    chefs = [Chef("acme/a/0"), Chef("acme/b/0")]
    for chef in chefs:
        chef.fresh = 5
    settle(book, chefs, 2)
    assert sum(chef.holding for chef in chefs) > 2
