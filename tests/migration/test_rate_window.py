"""V1's rate: exact in every window, whatever the clock does."""

from __future__ import annotations

import random

from toque.migration.rate_window import RateWindow
from toque.runtime import limits


def test_no_window_ever_holds_more_than_its_most() -> None:
    drawn = random.Random(7)
    window = RateWindow(20, 10_000)
    admitted: list[int] = []
    now_ms = 1_000_000_000
    for _ in range(5_000):
        now_ms += drawn.choice((0, 0, 1, 3, 40, 700, 2_500))
        wait_ms = window.admit(now_ms)
        if not wait_ms:
            admitted.append(now_ms)
        else:
            assert RateWindow(20, 10_000, window.state()).admit(now_ms + wait_ms) == 0
            assert wait_ms <= 10_000 + 10_000 // limits.V1_RATE_BUCKETS
        if drawn.random() < 0.05:
            window = RateWindow(20, 10_000, window.state())
    assert len(admitted) > 400
    for first, last in zip(admitted, admitted[20:], strict=False):
        assert last - first >= 10_000


def test_a_clock_that_is_set_back_blocks_no_creates_for_longer() -> None:
    window = RateWindow(3, 10_000)
    assert [window.admit(5_000_000) for _ in range(3)] == [0, 0, 0]
    assert window.admit(5_000_000)
    back_ms = 1_000_000
    wait_ms = window.admit(back_ms)
    assert 0 < wait_ms <= 10_100
    assert window.admit(back_ms + wait_ms) == 0
