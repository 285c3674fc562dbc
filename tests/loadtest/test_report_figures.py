"""Figures as people read them, and distributions as histograms carry them."""

from __future__ import annotations

import msgspec
import pytest

from tests.loadtest.made_results import latency, long_tail
from toque.loadtest.report_data import Curve
from toque.loadtest.report_format import change, count, duration, number, percentile, tick
from toque.loadtest.report_hdr import curve_of, distribution_of
from toque.loadtest.result import Latency


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (0, "0"),
        (0.0, "0"),
        (0.00123, "0.00123"),
        (0.99999, "1.00"),
        (3, "3"),
        (3.14159, "3.14"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234567.8, "1,234,568"),
        (-2.5, "−2.50"),
    ],
)
def test_a_number_has_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.25, "250 ms"),
        (61.25, "61.2 s"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3725, "1 h 2 min"),
    ],
)
def test_a_duration_is_in_its_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_other_figures() -> None:
    assert [change(ratio) for ratio in (None, 1, 1.021, 1.5, 0.25, 2.5)] == [
        "–", "+0.0 %", "+2.1 %", "+50 %", "−75 %", "×2.50",
    ]  # fmt: skip
    assert [tick(value) for value in (0, 0.25, 9999, 15_000, 2_500_000, 1e9, 1e15)] == [
        "0", "0.25", "9999", "15k", "2.5M", "1G", "1e+15",
    ]  # fmt: skip
    assert [percentile(q) for q in (0.5, 0.99, 0.9999)] == ["p50", "p99", "p99.99"]
    assert count(1234.0) == "1,234"


def latency_of(values_ms: list[float]) -> Latency:
    """As a result carries it."""
    return msgspec.convert(latency(values_ms), Latency)


def test_a_histogram_tells_its_quantiles() -> None:
    one = latency_of(long_tail(5000))
    found = distribution_of(one)
    assert found is not None
    assert found.total == 5000
    for q, wanted in ((0.5, one.p50), (0.9, one.p90), (0.99, one.p99), (1.0, one.max)):
        assert wanted is not None
        assert found.quantile(q) == pytest.approx(wanted, rel=2e-3)


def test_rarer_percentiles_have_more_noise_and_the_rarest_none_that_is_known() -> None:
    found = distribution_of(latency_of(long_tail(5000)))
    assert found is not None
    half, most = found.noise(0.5), found.noise(0.99)
    assert half is not None
    assert most is not None
    assert 0 < half < most
    assert found.noise(0.999) is None
    assert found.noise(0.0001) is None


def test_a_curve_rises_to_the_maximum_and_is_bounded() -> None:
    one = latency_of(long_tail(20_000))
    points = curve_of(one, 50)
    assert points == sorted(points)
    assert len(points) <= 53
    assert points[-1][1] == pytest.approx(one.max, rel=2e-3)
    assert points[-1][0] == 1 - 0.5 / 20_000
    assert Curve("", points, 0, 0).at(0.5) == pytest.approx(one.p50, rel=0.1)
    assert Curve("", points, 0, 0).at(0.999999) is None


def test_a_curve_of_one_value() -> None:
    ((first, value), (last, same)) = curve_of(latency_of([7.0]), 50)
    assert (first, last) == (0, 0.5)
    assert value == same == pytest.approx(7, rel=2e-3)


def test_without_a_histogram_the_percentiles_are_the_curve() -> None:
    one = msgspec.structs.replace(latency_of(long_tail(1000)), hdr="")
    assert distribution_of(one) is None
    assert [value for _, value in curve_of(one, 50)] == [
        one.min, one.p50, one.p90, one.p99, one.p999, one.max,
    ]  # fmt: skip
    assert curve_of(Latency(0), 50) == []
