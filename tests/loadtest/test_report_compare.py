"""Two results: what is comparable, what counts as a difference, and how it is told."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.loadtest.made_results import counts, latency, long_tail, result
from tests.loadtest.test_report import HOSTILE, Page, hostile
from toque.loadtest.compare import Comparison, compare
from toque.loadtest.compare_page import comparison_html
from toque.loadtest.result import Result
from toque.loadtest.summary import print_comparison, print_summary
from toque.runtime.errors import InvalidArgument


def outcomes(comparison: Comparison) -> dict[str, str]:
    """How each figure came out."""
    return {row.figure: row.outcome for row in comparison.rows}


def test_a_result_is_the_same_as_itself() -> None:
    comparison = compare(result(), result())
    assert set(outcomes(comparison).values()) == {"same", "unclear"}
    assert comparison.differences == []
    assert all(row.ratio in (1, None) for row in comparison.rows)


def test_slower_is_worse_and_faster_is_better() -> None:
    slow = result(latencies={"create": latency(long_tail(2000, 1.5))})
    assert outcomes(compare(result(), slow))["create p50"] == "worse"
    assert outcomes(compare(slow, result()))["create p50"] == "better"


def test_more_a_second_is_better() -> None:
    more = result(counts=counts(3000))
    assert outcomes(compare(result(), more))["completed a second"] == "better"
    assert outcomes(compare(more, result()))["completed a second"] == "worse"


def test_a_difference_within_the_noise_is_none() -> None:
    near = result(latencies={"create": latency(long_tail(2000, 1.15))})
    assert outcomes(compare(result(), near, floor=0.2))["create p50"] == "same"
    assert outcomes(compare(result(), near))["create p50"] == "worse"


def test_a_percentile_of_too_few_values_is_unclear() -> None:
    few = result(latencies={"create": latency(long_tail(200))})
    slow = result(latencies={"create": latency(long_tail(200, 3))})
    found = outcomes(compare(few, slow))
    assert found["create p50"] == "worse"
    assert found["create p99"] == "unclear"
    assert found["create p99.9"] == "unclear"


def test_an_unsteady_rate_has_more_noise() -> None:
    times = [float(t) for t in range(40)]
    steady = {"t_s": times, "completed": [100.0] * 40}
    odd = {"t_s": times, "completed": [20.0] * 20 + [180.0] * 20}
    calm, rough = (
        compare(result(series=one, counts=counts(2000)), result(series=one, counts=counts(2300)))
        for one in (steady, odd)
    )
    assert outcomes(calm)["completed a second"] == "better"
    assert outcomes(rough)["completed a second"] == "same"


def test_more_calls_to_gatekeepers_and_less_fairness_are_worse() -> None:
    times = [float(t) for t in range(20)]
    few = result(
        series={"t_s": times, "gatekeeper_calls_per_s": [2.0] * 20}, fairness={"share_error": 0.01}
    )
    many = result(
        series={"t_s": times, "gatekeeper_calls_per_s": [3.0] * 20}, fairness={"share_error": 0.2}
    )
    for a, b, outcome in ((few, few, "same"), (few, many, "worse"), (many, few, "better")):
        found = outcomes(compare(a, b))
        assert found["calls to Gatekeepers"] == outcome
        assert found["unfairness of slots"] == outcome


def test_errors_are_worse_when_they_are_more_than_chance() -> None:
    none, one = result(), result(counts=counts(2000, failed=1))
    many = result(counts=counts(2000, failed=100))
    assert outcomes(compare(none, one))["errors"] == "same"
    assert outcomes(compare(none, many))["errors"] == "worse"
    assert outcomes(compare(many, none))["errors"] == "better"


UNLIKE: dict[str, dict[str, Any]] = {
    "scenario": {"scenario": "burst"},
    "target": {"target": {"kind": "embedded", "url": None}},
    "option rate": {"options": {"rate": 200, "duration": 20}},
    "option duration": {"options": {"rate": 100}},
    "cores": {"machine": {"python": "3.11.7", "platform": "Linux", "cores": 4, "fsync_ms": 0.2}},
    "platform": {"machine": {"python": "3.11.7", "platform": "Mac", "cores": 2, "fsync_ms": 0.2}},
    "fsync": {"machine": {"python": "3.11.7", "platform": "Linux", "cores": 2, "fsync_ms": 2.0}},
    "stopped early": {"stopped_early": "Ctrl-C"},
}


@pytest.mark.parametrize(("word", "changed"), UNLIKE.items(), ids=UNLIKE.keys())
def test_what_was_got_in_another_way_is_refused_unless_forced(
    word: str, changed: dict[str, Any]
) -> None:
    other = result(**changed)
    with pytest.raises(InvalidArgument) as refused:
        compare(result(), other, names=("a.json", "b.json"))
    assert word in str(refused.value)
    assert "a.json and b.json are not comparable" in str(refused.value)
    assert "--force" in str(refused.value)
    (difference,) = compare(result(), other, force=True).differences
    assert word in difference


def test_versions_of_one_system_are_comparable() -> None:
    names = "Linux-6.1.9-x86_64-with-glibc2.36", "Linux-6.2.1-x86_64-with-glibc2.39"
    other = "Linux-6.1.9-aarch64-with-glibc2.36"
    a, b, c = (
        result(machine={"python": "3.11.7", "platform": name, "cores": 2})
        for name in (*names, other)
    )
    assert compare(a, b).differences == []
    assert compare(a, c, force=True).differences == ['platform: "Linux-x86_64" and "Linux-aarch64"']


def test_options_that_change_nothing_may_differ() -> None:
    other = result(options={"rate": 100, "duration": 20, "seed": "2", "slo": ["error_rate=0.01"]})
    assert compare(result(), other).differences == []


@pytest.mark.parametrize("floor", [-0.1, 1.5, float("nan")])
def test_noise_is_a_share(floor: float) -> None:
    with pytest.raises(InvalidArgument, match="from 0 to 1"):
        compare(result(), result(), floor=floor)


def test_results_of_unlike_lengths_are_drawn_together() -> None:
    short = {"t_s": [0.0, 1.0], "completed": [100.0, 100.0]}
    a, b = result(), result(series=short)
    page = Page(comparison_html(compare(a, b), a, b))
    assert "first: completed" in page.text
    assert "second: completed" in page.text
    assert "Noise is the 99.9 % interval" in page.text


def test_nothing_in_common_is_told() -> None:
    nothing: dict[str, Any] = {
        "latencies": {},
        "counts": counts(0),
        "wall_s": 0.0,
        "processes": {},
        "control_plane": {},
    }
    a, b = result(**nothing), result(**nothing)
    assert "No figure is in both" in Page(comparison_html(compare(a, b), a, b)).text


def test_a_comparison_is_plain_data() -> None:
    text = msgspec.json.encode(compare(result(), result()))
    assert msgspec.json.decode(text, type=Comparison) == compare(result(), result())


# --- at a terminal ---


def printed(what: Result | Comparison) -> str:
    """What is printed where there is no terminal."""
    out = io.StringIO()
    console = Console(file=out)
    if isinstance(what, Result):
        print_summary(what, console)
    else:
        print_comparison(what, console)
    return out.getvalue()


def test_the_summary_tells_counts_latencies_and_objectives() -> None:
    slos = [{"objective": "p99_create_ms<=5", "measured": 8.9, "met": False}]
    text = printed(result(slos=slos, failures={"overloaded": 3}))
    for words in ("steady", "2,000 completed", "P99", "8.90", "✗ 1 of 1 objectives missed"):
        assert words in text, words
    assert "failed: 3 × overloaded" in text


def test_the_summary_tells_groups_apart_where_they_differ() -> None:
    one, two = latency(long_tail(50)), latency(long_tail(40, 3))
    groups = {
        "quiet": {"counts": counts(50), "latencies": {"start": one, "list": one}},
        "noisy": {"counts": counts(40), "latencies": {"start": two}},
    }
    latencies = {"list": one, "start": one}
    lines = printed(result(groups=groups, latencies=latencies)).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("created until it"))
    assert [line.split()[:2] for line in lines[first + 1 : first + 3]] == [
        ["quiet", "50"],
        ["noisy", "40"],
    ]
    assert lines[first + 3].startswith("list")
    assert sum("quiet" in line for line in lines) == 1


def test_the_summary_tells_the_rates_of_a_ramp() -> None:
    slo = {"objective": "p99_create_ms<=50", "measured": 80.0, "met": False}
    text = printed(result(ramp=[{"rate": 75.0, "held": False, "slos": [slo]}]))
    assert "75 a second ✗ missed (p99_create_ms<=50: 80)" in text
    assert "the last rate that held: no rate" in text


def test_a_comparison_is_a_line_a_figure() -> None:
    slow = result(latencies={"create": latency(long_tail(2000, 1.5))})
    text = printed(compare(result(), slow))
    (line,) = (line for line in text.splitlines() if line.startswith("create p50"))
    assert "+50 %" in line
    assert "▼ worse" in line


def test_text_from_outside_reaches_no_terminal_as_more_than_text() -> None:
    unlike = result(**hostile())
    comparison = compare(unlike, unlike, names=(HOSTILE, HOSTILE), force=True)
    for text in (printed(unlike), printed(comparison)):
        assert "\x1b" not in text
        assert "[31m" in text
    page = Page(comparison_html(comparison, unlike, unlike))
    assert "script" not in page.tags
