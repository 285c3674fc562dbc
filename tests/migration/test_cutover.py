"""The cut-over as a state machine: every state, every outcome, every request."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toque.migration.cutover import (
    ABORTABLE,
    ACTS,
    FINISHED,
    HOLDS,
    TRANSITIONS,
    Act,
    Cutover,
    Outcome,
    State,
    aborting,
    act_of,
    asked,
    begun,
    due_ms,
    final,
    knows,
    moved,
    pause_ms,
    troubled,
    under_way,
)
from toque.migration.messages import Frozen, OldStatus, migration_id
from toque.migration.planning import Facts, objections, plan_of
from toque.migration.refusals import AbortRefused, MigrationUnderWay
from toque.runtime.errors import RequestIdReused

FROZEN = Frozen("000000001", 5, 1, 3, 4, 5, 6, 2, 100)
TOO_LATE = AbortRefused("V2 took a create", {"since_ms": 1_005})
PATH = [
    State.PLANNED, State.FROZEN, State.ADOPTED, State.ROUTED, State.HEALED, State.DRAINED,
    State.RETIRED,
]  # fmt: skip


def status(plane: str = "v1", **more: object) -> OldStatus:
    found = OldStatus(plane, "", False, 2, 4, 3, 5, 6, 7, 3, 0, 0, 20, 1)
    return msgspec.structs.replace(found, **more)


def at(state: State) -> Cutover:
    """A migration in that state."""
    cutover = begun(None, "r1", 0, 1)
    if state in (State.ABORTING, State.ABORTED):
        cutover = aborting(cutover, 2)
    while cutover.state is not state:
        cutover = moved(cutover, Outcome.DONE, 2, FROZEN)
    return cutover


def test_it_goes_its_way_and_remembers_when() -> None:
    cutover = begun(None, "r1", 0, 100)
    assert cutover.id == migration_id(1)
    for number, state in enumerate(PATH[1:], 1):
        assert act_of(cutover, 100) is ACTS[cutover.state]
        cutover = moved(cutover, Outcome.DONE, 100 + number, FROZEN)
        assert cutover.state is state
    assert cutover.log == [(state.value, 100 + n) for n, state in enumerate(PATH)]
    assert cutover.frozen == FROZEN
    assert act_of(cutover, 10**15) is None
    assert due_ms(cutover, 10**15) is None


def test_each_state_has_an_act_and_a_way_or_is_the_end() -> None:
    assert set(ACTS) == set(TRANSITIONS) == set(State) - FINISHED
    assert set(ACTS.values()) == set(Act)


@pytest.mark.parametrize("state", list(State))
def test_a_row_reads_as_it_was_written(state: State) -> None:
    cutover = troubled(at(state), "ShardUnavailable: c0")
    assert msgspec.json.decode(msgspec.json.encode(cutover), type=Cutover) == cutover


@pytest.mark.parametrize("state", [state for state in State if state not in FINISHED])
def test_what_has_to_be_done_again_changes_nothing_but_trouble(state: State) -> None:
    before = at(state)
    assert moved(before, Outcome.AGAIN, 9) == before
    assert moved(troubled(before, "weather"), Outcome.AGAIN, 9) == before


@pytest.mark.parametrize("state", list(State))
def test_a_pause_holds_where_calls_are_served_and_nowhere_else(state: State) -> None:
    paused = msgspec.structs.replace(at(state), paused=True)
    is_held = state in (State.PLANNED, State.ROUTED, State.HEALED, State.DRAINED)
    assert paused.holds is is_held is (state in HOLDS)
    if state not in FINISHED:
        assert (act_of(paused, 9) is None) is is_held
        assert (due_ms(paused, 9) is None) is is_held


@pytest.mark.parametrize("state", list(State))
def test_an_abort_leads_back_or_is_refused(state: State) -> None:
    cutover = at(state)
    if state in ABORTABLE:
        asked = aborting(msgspec.structs.replace(cutover, paused=True), 7)
        assert (asked.state, asked.came_from, asked.holds) == (State.ABORTING, state, False)
        assert act_of(asked, 7) is Act.ABANDON
        assert moved(asked, Outcome.DONE, 8).state is State.ABORTED
        refused = moved(asked, Outcome.REFUSED, 8, TOO_LATE)
        assert (refused.state, refused.paused) == (state, True)
        assert final(refused, None) == "V2 took a create"
        with pytest.raises(
            AbortRefused, match=r"01\.005\+00:00: V2 took a create\. It goes"
        ) as late:
            aborting(refused, 9)
        assert late.value.data == {"state": state.value, "since_ms": 1_005}
        unknown = AbortRefused("V2 has healed", {"since_ms": 0})
        with pytest.raises(AbortRefused, match=r"can't be aborted: V2 has healed\. It goes on"):
            aborting(moved(asked, Outcome.REFUSED, 8, unknown), 9)
    elif state in (State.ABORTING, State.ABORTED):
        assert aborting(cutover, 7) == cutover
    else:
        with pytest.raises(AbortRefused, match=r"00\.002\+00:00: V2 has healed") as late:
            aborting(cutover, 7)
        assert late.value.data == {"state": state.value, "since_ms": 2}
        assert ("It has ended." in late.value.message) is (state in FINISHED)


def test_the_first_create_of_this_migration_makes_it_final() -> None:
    routed = at(State.ROUTED)
    assert final(routed, status("v2", migration_id=routed.id)) == ""
    assert "taken creates" in final(routed, status("v2", migration_id=routed.id, first_create_ms=5))
    assert final(routed, status("v2", migration_id="000000000", first_create_ms=5)) == ""


def test_a_start_is_one_migration_and_the_next_has_a_later_id() -> None:
    first = begun(None, "r1", 50, 1)
    assert begun(first, "r1", 50, 2) is first
    with pytest.raises(MigrationUnderWay, match="planned"):
        begun(first, "r2", 0, 2)
    ended = at(State.ABORTED)
    second = begun(ended, "r2", 0, 2)
    assert second.id > ended.id
    assert (second.state, second.frozen, second.came_from) == (State.PLANNED, None, None)


def test_a_request_stands_for_one_change() -> None:
    cutover = asked(begun(None, "r1", 50, 1), "r2", "pause")
    assert knows(cutover, "r2", "pause")
    assert not knows(cutover, "r3", "resume")
    for request_id, what in (("r1", "pause"), ("r2", "resume"), ("r2", "start:50")):
        with pytest.raises(RequestIdReused, match="nothing was done"):
            knows(cutover, request_id, what)
    with pytest.raises(RequestIdReused, match=r"\(start\)"):
        begun(cutover, "r1", 99, 2)
    older = msgspec.structs.replace(cutover, seen=["r4"])  # what was asked was not noted then
    assert knows(older, "r4", "abort")


@pytest.mark.parametrize("state", [state for state in State if state not in FINISHED])
def test_who_begins_it_again_is_told_what_can_be_done(state: State) -> None:
    cutover = at(state)
    with pytest.raises(MigrationUnderWay, match=f"being moved already: {state}") as refused:
        begun(cutover, "r2", 0, 9)
    can_abort = not final(cutover, None)
    assert ("toque migrate abort" in refused.value.message) is can_abort
    assert ("V2 serves it" in refused.value.message) is not can_abort
    assert objections(facts(known=cutover)) == [refused.value.message]
    paused = msgspec.structs.replace(cutover, paused=True)
    assert ("toque migrate resume" in under_way(paused)) is (state in HOLDS)


def test_it_does_not_begin_before_its_time() -> None:
    cutover = begun(None, "r1", 49, 1)
    assert (act_of(cutover, 49), due_ms(cutover, 49)) == (None, 50)
    assert (act_of(cutover, 50), due_ms(cutover, 60)) == (Act.FREEZE, 60)


@given(st.lists(st.sampled_from(["done", "again", "refused", "abort", "pause", "resume"])))
def test_no_order_of_events_leaves_the_way(events: list[str]) -> None:
    cutover = begun(None, "r1", 0, 0)
    for now_ms, event in enumerate(events, 1):
        before = cutover
        if event == "abort":
            if not final(cutover, None):
                cutover = aborting(cutover, now_ms)
        elif event in ("pause", "resume"):
            cutover = msgspec.structs.replace(cutover, paused=event == "pause")
        elif act_of(cutover, now_ms) is not None and (
            event != "refused" or cutover.state is State.ABORTING
        ):
            found = TOO_LATE if event == "refused" else FROZEN
            cutover = moved(cutover, Outcome(event), now_ms, found)
        if cutover.state is not before.state:
            assert cutover.log == [*before.log, (cutover.state.value, now_ms)]
        if cutover.state in PATH[1:]:
            assert cutover.frozen == FROZEN
    states = [state for state, _ in cutover.log if state in PATH]
    assert states == sorted(states, key=PATH.index), "it never goes back but from an abort"


def test_what_takes_long_is_looked_at_more_seldom() -> None:
    healed, drained = at(State.HEALED), at(State.DRAINED)
    assert pause_ms(at(State.ROUTED), Act.HEAL, 10**9) == 10
    waited = [pause_ms(healed, Act.DRAIN, 2 + ms) for ms in (0, 60_000, 600_000, 10**9)]
    assert waited == [2_000, 3_000, 30_000, 60_000]
    waited = [pause_ms(drained, Act.RETIRE, 2 + ms) for ms in (0, 86_400_000)]
    assert waited == [60_000, 3_600_000]


def facts(**more: object) -> Facts:
    found = Facts("acme", status(), None, 2, 1, 50_000, 4_500, {"orders": 10}, [])
    return msgspec.structs.replace(found, **more)


def test_a_plan_tells_what_would_happen() -> None:
    plan = plan_of(facts())
    assert plan.objections == []
    assert [step.split(":")[0] for step in plan.steps] == [
        act.value for act in Act if act is not Act.ABANDON
    ]
    assert "the 3 that hold" in plan.steps[0]
    assert "the 2 that are queued without an Engine" in plan.steps[3]
    assert (plan.running_max_before, plan.running_max_after) == (4_500, 50_000)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"old": None}, "does not answer"),
        ({"old": status("v2")}, "not on V1"),
        ({"old": status("moving")}, "not known here"),
        ({"known": at(State.ROUTED)}, "being moved already: routed"),
        ({"silent": ["d1"]}, "Shard d1 does not answer"),
        ({"workflows": 2_001}, "2001 workflows; V2 takes 2000"),
        ({"scripts": 501}, "501 scripts; V2 takes 500"),
        ({"queued": {"orders": 2_000_001}}, "'orders' has 2000001 queued; V2 takes 2000000"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_speaks_against_it_is_told(more: dict[str, object], told: str) -> None:
    found = objections(facts(**more))
    assert len(found) == 1
    assert told in found[0]
    assert plan_of(facts(**more)).objections == found


def test_a_migration_that_ended_speaks_not_against_another() -> None:
    assert objections(facts(known=at(State.ABORTED))) == []
