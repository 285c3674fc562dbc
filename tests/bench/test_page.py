"""The page of figures: sections, machines, targets; and how figures are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench import everything, figures, progress, sections, targets
from bench.__main__ import MEASURES, make_app

HERE, THERE = "aaaa1111", "bbbb2222"


def test_a_section_is_put_in_place_of_what_it_said(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    sections.put("b", "## B\n\nold\n", page)
    sections.put("a", "## A\n\nstays", page)
    sections.put("b", "## B\n\nnew", page)
    text = page.read_text()
    assert text.index("## A\n\nstays") < text.index("## B\n\nnew")
    assert "old" not in text
    assert text.startswith("# Performance\n")
    sections.put("b", "## B\n\nnew", page)
    assert page.read_text() == text


def test_figures_of_another_machine_leave_the_page(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Performance\n\n<!-- begin: bench old -->\n## Old\n<!-- end: bench old -->\n")
    sections.put("a", "## A", page, machine=THERE)
    assert "## Old" not in page.read_text()
    sections.put("b", "## B", page, machine=HERE)
    assert "## A" not in page.read_text()
    assert "## B" in page.read_text()


def test_targets_come_first_and_say_what_is_met_and_what_is_not_measured(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    sections.put("slow-fsync", "## Slow", page, figures={"w1": 0.91234, "w2": 0.5}, machine=HERE)
    sections.put("a", "## A", page, machine=HERE)
    text = page.read_text()
    assert text.index("## Targets") < text.index("## Slow") < text.index("## A")
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "|" in line}
    assert "| at least 0.7 | 0.912 | yes |" in lines[target("slow-fsync.w1").what]
    assert "| at least 0.7 | 0.5 | no |" in lines[target("slow-fsync.w2").what]
    assert "| not measured |  |" in lines[target("creates.start_p99_ms").what]
    sections.put("slow-fsync", "## Slow", page, figures={"w1": 0.2}, machine=HERE)
    assert page.read_text().count("not measured") == len(targets.TARGETS) - 1


def test_what_is_to_be_measured_again_leaves_the_page(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    for name in ("comparison", "idle", "queue"):
        sections.put(name, f"## {name}", page)
    sections.drop(everything.sections_of(everything.parts(False)), page)
    text = page.read_text()
    assert "## comparison" in text, "without peers the last comparison stays"
    assert "## idle" not in text
    assert "## queue" in text, "it is no part of all"
    sections.drop(everything.sections_of(everything.parts(True)), page)
    assert "## comparison" not in page.read_text()


def test_a_section_that_is_written_is_told_in_the_progress_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "progress.jsonl"))
    sections.put("idle", "## Idle", tmp_path / "page.md", figures={"ray_cores": 0.0123456})
    sections.put("steps", "## Steps", tmp_path / "page.md")
    told = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [(line["part"], line.get("ray_cores")) for line in told] == [
        ("idle", 0.01235),
        ("steps", None),
    ]


def target(figure: str) -> targets.Target:
    """The one of that figure."""
    return next(one for one in targets.TARGETS if one.figure == figure)


@pytest.mark.parametrize(
    ("make", "value", "met"),
    [
        (targets.least, 2, True),
        (targets.least, 1.9, False),
        (targets.most, 2, True),
        (targets.most, 2.1, False),
    ],
)
def test_a_bound_may_be_reached(make: Any, value: float, met: bool) -> None:
    assert make("it", "a.b", 2).is_met(value) is met


def test_what_was_measured_on_less_meets_nothing() -> None:
    one = targets.most("it", "a.b", 2, "ms", n=1_000, kills=20)
    assert one.cells({"a.b": 1, "a.n": 1_000, "a.kills": 20})[2:4] == ["1 ms", "yes"]
    assert one.cells({"a.b": 1, "a.n": 500, "a.kills": 20})[2:4] == [
        "1 ms (n 500)",
        "not at that size",
    ]
    assert one.cells({"a.b": 1})[2] == "1 ms (n 0, kills 0)"


def test_targets_name_measures_that_there_are() -> None:
    for one in targets.TARGETS:
        assert one.measure in MEASURES, one
    assert len({one.figure for one in targets.TARGETS}) == len(targets.TARGETS)


@pytest.mark.parametrize("name", MEASURES)
def test_each_measure_says_what_its_options_are(name: str) -> None:
    shown = CliRunner().invoke(make_app([name]), [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "--help" in shown.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["creates", "--rates", "fast"], "--rates 200,2000"),
        (["creates", "--rates", "300,0"], "from 1 on"),
        (["creates", "--rates", "nan"], "from 1 on"),
        (["creates", "--seconds", "inf"], "inf, which is not a number"),
        (["layers", "--scale", "inf"], "inf, which is not a number"),
        (["control-plane", "--creates", ""], "from 1 on"),
        (["compare", "--peers", "none", "--workloads", "w1,w9"], "'w9' is not known"),
        (["noisy", "--limit", "0"], "--limit"),
        (["noisy", "--rate", "-1"], "--rate"),
        (["queue", "--drain-s", "-1"], "--drain-s"),
        (["front", "--profile", "all"], "api or client"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_refused_before_anything_is_measured(words: list[str], told: str) -> None:
    found = CliRunner().invoke(make_app([words[0]]), words, env={"COLUMNS": "200"})
    assert found.exit_code == 2, found.output
    assert told in found.stderr


@pytest.mark.parametrize("others", [False, True])
def test_the_parts_of_make_bench_have_the_options_that_they_are_given(others: bool) -> None:
    found = [*everything.parts(others), *everything.quick_parts(others)]
    for part in found:
        command = typer.main.get_command(make_app([part.words[0]])).commands[part.words[0]]
        command.make_context(part.words[0], list(part.words[1:]))
    assert sum(part.usual_s for part in everything.parts(others)) < 24 * 60


def test_medians_and_digits() -> None:
    assert figures.median_of([{"a": 1}, {"a": 3}, {}], "a") == 2
    assert figures.median_of([{}], "a") is None
    assert [figures.shown(v) for v in (None, 0.12345, 12345.6)] == ["-", "0.123", "12,346"]
