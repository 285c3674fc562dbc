"""The gates alone: order in, durability out."""

from __future__ import annotations

import pytest

from toque.runtime.errors import Overloaded, StoreFailed
from toque.runtime.gates import InputGate, OutputGate


class Durability:
    """The part of a store that the output gate sees; a test makes batches durable by hand."""

    def __init__(self) -> None:
        self.durable_seq = 0
        self.waiting: list[tuple[int, object, object]] = []

    def when_durable(self, seq, callback, owner=None):
        self.waiting.append((seq, callback, owner))

    def commit(self, seq: int, error: BaseException | None = None) -> None:
        if error is None:
            self.durable_seq = seq
        due = [entry for entry in self.waiting if entry[0] <= seq]
        self.waiting = [entry for entry in self.waiting if entry[0] > seq]
        for _, callback, _ in due:
            callback(error)


def test_events_enter_an_open_gate_at_once():
    gate = InputGate(waiting_max=2)
    seen: list[int] = []
    gate.enter(lambda: seen.append(1))
    assert seen == [1]
    assert not gate.closed


def test_events_wait_in_order_while_the_gate_is_held():
    gate = InputGate(waiting_max=10)
    seen: list[int] = []
    first, second = gate.hold(), gate.hold()
    for n in range(3):
        gate.enter(lambda n=n: seen.append(n))
    first()
    assert seen == []
    first()  # giving the same hold back twice must not open the gate
    assert seen == []
    second()
    assert seen == [0, 1, 2]


def test_an_event_that_closes_the_gate_again_stops_the_queue():
    gate = InputGate(waiting_max=10)
    seen: list[str] = []
    holds = []

    def closes() -> None:
        seen.append("closes")
        holds.append(gate.hold())

    release = gate.hold()
    gate.enter(closes)
    gate.enter(lambda: seen.append("late"))
    release()
    assert seen == ["closes"]
    assert gate.waiting == 1
    holds.pop()()
    assert seen == ["closes", "late"]


def test_an_event_cannot_overtake_those_that_wait():
    gate = InputGate(waiting_max=10)
    seen: list[str] = []
    release = gate.hold()

    def first() -> None:
        gate.enter(lambda: seen.append("nested"))
        seen.append("first")

    gate.enter(first)
    gate.enter(lambda: seen.append("second"))
    release()
    assert seen == ["first", "second", "nested"]


def test_too_many_waiting_events_are_refused():
    gate = InputGate(waiting_max=1)
    gate.hold()
    gate.enter(lambda: None)
    with pytest.raises(Overloaded):
        gate.enter(lambda: None)
    assert len(gate.clear()) == 1


def gate_over(store: Durability, failures: list[BaseException], **kwargs: bool) -> OutputGate:
    return OutputGate(store, "owner", failures.append, **kwargs)  # type: ignore[arg-type]


def test_output_passes_at_once_when_nothing_was_written():
    seen: list[str] = []
    gate_over(Durability(), []).passes(lambda: seen.append("out"))
    assert seen == ["out"]


def test_output_waits_for_the_newest_write_only():
    store, seen = Durability(), []
    gate = gate_over(store, [])
    gate.last_seq = 3
    gate.passes(lambda: seen.append("a"))
    store.commit(2)
    assert seen == []
    gate.last_seq = 4
    gate.passes(lambda: seen.append("b"))
    store.commit(3)
    assert seen == ["a"]
    store.commit(4)
    assert seen == ["a", "b"]


def test_output_never_passes_when_the_commit_fails():
    store, seen, failures, refused = Durability(), [], [], []
    gate = gate_over(store, failures)
    gate.last_seq = 1
    gate.passes(lambda: seen.append("out"), refused.append)
    error = StoreFailed("disk")
    store.commit(1, error)
    assert seen == []
    assert failures == [error]
    assert refused == [error]


def test_the_deliberate_fault_lets_everything_out():
    store, seen = Durability(), []
    gate = gate_over(store, [], always_open=True)
    gate.last_seq = 1
    gate.passes(lambda: seen.append("out"))
    assert seen == ["out"]
