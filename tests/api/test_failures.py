"""Failed attempts are slowed per address, within bounded memory."""

from __future__ import annotations

import pytest

from toque.api.failures import Failures
from toque.runtime import limits


def test_a_burst_passes_and_then_one_a_second() -> None:
    failures = Failures(burst=3, per_second=1)
    assert [failures.note("10.0.0.1", 0.0) for _ in range(5)] == [None, None, None, 1000, 1000]
    assert failures.note("10.0.0.1", 0.5) == 500
    assert failures.note("10.0.0.1", 1.5) is None
    assert failures.note("10.0.0.1", 1.5) == 500
    assert [failures.note("10.0.0.1", 100.0) for _ in range(4)] == [None, None, None, 1000]


def test_addresses_are_apart_and_a_customer_of_ipv6_is_one() -> None:
    failures = Failures(burst=1, per_second=1)
    assert failures.note("10.0.0.1", 0.0) is None
    assert failures.note("10.0.0.2", 0.0) is None
    assert failures.note("2001:db8::1", 0.0) is None
    assert failures.note("2001:db8::ffff:1", 0.0) == 1000
    assert failures.note("2001:db8:0:1::1", 0.0) is None
    assert failures.is_slowed("10.0.0.1", 0.5)
    assert not failures.is_slowed("10.0.0.3", 0.5)


def test_a_clock_that_stands_or_goes_back_gives_nothing() -> None:
    failures = Failures(burst=1, per_second=1)
    assert failures.note("a", 10.0) is None
    assert failures.note("a", 5.0) == 1000


def test_memory_is_bounded_and_the_longest_quiet_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "AUTH_ADDRESSES_MAX", 3)
    failures = Failures(burst=1, per_second=1)
    for number in (1, 2, 3, 1, 4):
        failures.note(f"10.0.0.{number}", 0.0)
    assert len(failures) == 3
    assert failures.is_slowed("10.0.0.1", 0.0)
    assert not failures.is_slowed("10.0.0.2", 0.0)
