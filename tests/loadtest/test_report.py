"""The HTML report: one file that needs nothing else, whatever a result holds or lacks."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest.made_results import counts, latency, long_tail, result
from toque.loadtest.report import report, write_report
from toque.loadtest.report_data import timelines
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument

HOSTILE = "</title></svg><script>alert('x')</script>\"'&{{1234*5678}}{%x%}$\\frac{$ \x1b[31m"
VOID = {"meta", "link", "br", "use", "path", "line", "rect", "circle"}


class Page(HTMLParser):
    """What a browser would find, and whether each element is closed by its own end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta",):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """All words."""
        return " ".join(" ".join(self.words).split())

    def values(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [value for _, found, value in self.attributes if found == name]


def test_a_report_tells_what_was_measured() -> None:
    page = Page(
        report(result(slos=[{"objective": "p99_create_ms<=50", "measured": 9.0, "met": True}]))
    )
    for words in ("Load test: steady", "2026-01-02T03:04:05Z", "1 of 1 objectives met", "2,000"):
        assert words in page.text, words
    assert "create, from the time it was due" in page.text
    assert page.tags.count("svg") > 4


def test_a_page_needs_nothing_else() -> None:
    text = report(result())
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    for _, name, value in page.attributes:
        if name in ("href", "xlink:href", "src", "action"):
            assert value.startswith("#"), (name, value)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "default-src 'none'" in text
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for name in ("aria-labelledby", "href"):
        for value in page.values(name):
            assert {one.lstrip("#") for one in value.split()} <= set(ids)
    for found in re.findall(r"url\(#([^)]*)\)", text):
        assert found in ids


def test_each_plot_has_a_name_a_text_and_a_table() -> None:
    text = report(result())
    for figure in re.findall(r"<figure>.*?</figure>", text, re.DOTALL):
        assert re.search(r'role="img"', figure)
        assert re.search(r"<title [^>]*>[^<]+</title><desc [^>]*>[^<]+</desc>", figure)
        assert "<table>" in figure


def hostile() -> dict[str, Any]:
    """Parts of a document in which every name is hostile."""
    one = latency(long_tail(50))
    group = {"counts": counts(50), "latencies": {HOSTILE: one, "create": one}}
    return {
        "scenario": HOSTILE,
        "toque": HOSTILE,
        "options": {HOSTILE: HOSTILE, "deep": {HOSTILE: [HOSTILE]}},
        "target": {"kind": "http", "url": HOSTILE},
        "machine": {"python": HOSTILE, "platform": HOSTILE, "cores": 2, "fsync_ms": None},
        "started_on": HOSTILE,
        "stopped_early": HOSTILE,
        "refusals": {HOSTILE: 1},
        "failures": {HOSTILE: 1},
        "latencies": {HOSTILE: one},
        "groups": {HOSTILE: group, "other": group},
        "series": {"t_s": [0.0, 1.0], f"rss_mib.{HOSTILE}": [1.0, 2.0], HOSTILE: [1.0, 2.0]},
        "processes": {HOSTILE: {"rss_mib_max": 1.0, "cpu_s": 1.0}},
        "chaos": [{"t_s": 0.5, "what": HOSTILE, "shard": HOSTILE, "recovered_s": None}],
        "slos": [{"objective": HOSTILE, "measured": None, "met": False}],
    }


def test_text_from_outside_is_only_ever_text() -> None:
    page = Page(report(result(**hostile())))
    assert "script" not in page.tags
    assert page.text.count("alert('x')") > 15
    assert "7006652" not in page.text
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


EMPTY = {
    "counts": counts(0),
    "latencies": {},
    "series": {"t_s": []},
    "processes": {},
    "control_plane": {},
    "options": {},
    "wall_s": 0.0,
}
SERIES = {
    "none": {"t_s": []},
    "no time": {"completed": [1.0, 2.0]},
    "one sample": {"t_s": [0.0], "completed": [3.0]},
    "one at zero": {"t_s": [0.0], "completed": [0.0]},
    "all missing": {"t_s": [0.0, 1.0], "completed": [None, None]},
    "gaps": {"t_s": [0.0, 1.0, 2.0, 3.0], "completed": [1.0, None, 2.0, None]},
    "unlike lengths": {"t_s": [0.0, 1.0, 2.0], "completed": [1.0], "failed": [1.0] * 9},
    "huge": {"t_s": [0.0, 1.0], "completed": [1e300, 0.0]},
    "tiny": {"t_s": [0.0, 1.0], "completed": [1e-300, 0.0]},
    "negative": {"t_s": [0.0, 1.0], "completed": [-5.0, -6.0]},
    "time runs back": {"t_s": [5.0, 1.0], "completed": [1.0, 2.0]},
}


@pytest.mark.parametrize("series", SERIES.values(), ids=SERIES.keys())
def test_any_series_makes_a_page(series: dict[str, Any]) -> None:
    Page(report(result(series=series)))


def test_a_test_of_nothing_makes_a_page() -> None:
    page = Page(report(result(**EMPTY)))
    assert "No objectives were set" in page.text
    assert "Not measured: Creates" in page.text


def test_latencies_without_values_are_left_out() -> None:
    page = Page(report(result(latencies={"create": latency([]), "end": latency([1.0])})))
    assert "create, from the time it was due" not in page.text
    assert "created until it ended" in page.text


@pytest.mark.parametrize("hdr", ["", "!", "AAAA", "x" * (limits.REPORT_HDR_CHARS_MAX + 4)])
def test_without_a_histogram_the_percentiles_are_drawn(hdr: str) -> None:
    one = {**latency(long_tail(1000)), "hdr": hdr}
    page = Page(report(result(latencies={"create": one})))
    assert "Percentiles" in page.text


def hours(processes: int, seconds: int) -> dict[str, Any]:
    """Series of a long test."""
    names = ["offered", "accepted", "completed", "failed", "create_p50_ms", "create_p99_ms"]
    names += ["in_flight", "queued", "queue_age_s", "slots_limit", "slots_leased", "slots_used"]
    names += ["gatekeeper_calls_per_s", "commits_per_s", "rows_per_commit"]
    names += ["frames_per_s", "calls_per_frame"]
    for kind in ("loop_lag_p99_ms", "rss_mib", "cpu_cores"):
        names += [f"{kind}.shard-{n}" for n in range(processes)]
    series: dict[str, Any] = {"t_s": [float(t) for t in range(seconds)]}
    for place, name in enumerate(names):
        series[name] = [50 + place + 40 * math.sin(t * (place + 3)) for t in range(seconds)]
    return series


def test_an_hour_of_many_processes_stays_small() -> None:
    one = latency(long_tail(20_000))
    names = ("create", "create_service", "start", "end", "wake", "list", "status", "recovery")
    chaos = [
        {"t_s": 30.0 * n, "what": "kill", "shard": "data-1", "recovered_s": 2.0} for n in range(100)
    ]
    text = report(
        result(
            series=hours(16, 3600), latencies=dict.fromkeys(names, one), chaos=chaos, wall_s=3600.0
        )
    )
    assert len(text.encode()) < 1_000_000
    page = Page(text)
    assert "The 8 largest; 8 more stand in the table." in page.text
    assert "A point is the mean of 12 s" in page.text


def test_buckets_keep_the_extremes() -> None:
    values = [1.0] * 3600
    values[1234] = 99.0
    values[2000] = -1.0
    series = {"t_s": [float(t) for t in range(3600)], "completed": values}
    (plot,) = timelines(result(series=series)).plots
    (line,) = plot.lines
    assert len(line.times) <= limits.REPORT_POINTS_MAX
    assert max(value for value in line.most if value is not None) == 99
    assert min(value for value in line.least if value is not None) == -1
    assert line.stats.most == 99
    assert line.stats.samples == 3600


@pytest.mark.parametrize(("limit", "drawn"), [(50_000.0, False), (100.0, True)])
def test_a_limit_far_above_does_not_flatten_the_rest(limit: float, drawn: bool) -> None:
    times = [0.0, 1.0]
    slots = {"slots_limit": [limit] * 2, "slots_leased": [40.0] * 2, "slots_used": [30.0] * 2}
    (plot,) = timelines(result(series={"t_s": times, **slots})).plots
    assert [each.label for each in plot.lines][-2:] == ["leased", "used"]
    assert ("limit" in [each.label for each in plot.lines]) is drawn
    assert ("limit" in [each.label for each in plot.more]) is not drawn
    assert bool(plot.note) is not drawn


def test_the_same_result_gives_the_same_page() -> None:
    assert report(result()) == report(result())


def test_a_ramp_is_told_rate_by_rate() -> None:
    slo = {"objective": "p99_create_ms<=50", "measured": 9.0, "met": True}
    late = {**slo, "measured": 80.0, "met": False}
    ramp = [
        {"rate": 50.0, "held": True, "slos": [slo]},
        {"rate": 75.0, "held": False, "slos": [late]},
    ]
    page = Page(report(result(scenario="ramp", ramp=ramp, held_rate=50.0)))
    assert "every objective held: 50 a second" in page.text
    assert "75 ✗ missed p99_create_ms<=50: 80" in page.text


def test_a_report_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="can't be written"):
        write_report(result(), tmp_path / "no" / "such.html")
    write_report(result(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report(result())


def test_a_fault_is_marked_on_the_time_axis() -> None:
    chaos = [{"t_s": 5.0, "what": "kill", "shard": "data-1", "recovered_s": 2.0}]
    plain, marked = report(result()), report(result(chaos=chaos))
    assert plain.count("var(--mark)") < marked.count("var(--mark)")
    assert "Upright lines are faults" in Page(marked).text
