"""`toque loadtest report` and `compare` as people call them: pages, exit codes, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.loadtest.made_results import latency, long_tail, result
from toque.api.cli import app
from toque.loadtest.result import write_result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, without settings of toque."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TOQUE_OUTPUT", raising=False)
    return tmp_path


def run(*words: str) -> Result:
    """What the command line says."""
    return CliRunner().invoke(app, ["loadtest", *words])


def written(name: str, **changed: Any) -> str:
    """A file with a result."""
    write_result(result(**changed), Path(name))
    return name


def test_a_result_is_shown_and_its_report_made() -> None:
    done = run("report", written("a.json"), "--html", "a.html")
    assert done.exit_code == 0, done.output
    assert "2,000 completed" in done.output
    assert "Load test: steady" in Path("a.html").read_text(encoding="utf-8")


def test_a_result_is_shown_as_json() -> None:
    done = run("report", written("a.json"), "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["schema"] == "toque.loadtest/1"


@pytest.mark.parametrize("damage", [lambda hdr: hdr[:-9], lambda hdr: "AAAA", None])
def test_a_damaged_histogram_is_refused(damage: Callable[[str], str] | None) -> None:
    one, other = latency(long_tail(1000)), latency(long_tail(999))
    hdr = other["hdr"] if damage is None else damage(one["hdr"])
    bad = written("bad.json", latencies={"create": {**one, "hdr": hdr}})
    for words in (["report", bad], ["compare", written("a.json"), bad]):
        done = run(*words)
        assert done.exit_code == 2, done.output
        assert "the histogram of latency 'create'" in " ".join(done.output.split())
    told = run("report", written("none.json", latencies={"create": {**one, "hdr": ""}}))
    assert told.exit_code == 0, told.output


def test_a_second_that_is_no_worse_is_exit_code_0() -> None:
    done = run("compare", written("a.json"), written("b.json"), "--html", "both.html")
    assert done.exit_code == 0, done.output
    assert "a.json (first), b.json (second)" in done.output
    assert "Load tests compared" in Path("both.html").read_text(encoding="utf-8")


def test_a_second_that_is_worse_is_exit_code_1() -> None:
    slow = written("b.json", latencies={"create": latency(long_tail(2000, 2))})
    done = run("compare", written("a.json"), slow)
    assert done.exit_code == 1, done.output
    assert "▼ worse" in done.output
    told = json.loads(run("compare", "a.json", "b.json", "--json").output)
    assert [row["outcome"] for row in told["rows"] if row["figure"] == "create p50"] == ["worse"]
    assert run("compare", "a.json", "b.json", "--noise", "1").exit_code == 0


def test_what_is_not_comparable_is_exit_code_2_unless_forced() -> None:
    other = written("b.json", scenario="burst")
    done = run("compare", written("a.json"), other)
    assert done.exit_code == 2
    assert 'scenario: "steady" and "burst"' in done.output
    forced = run("compare", "a.json", "b.json", "--force")
    assert forced.exit_code == 0, forced.output
    assert "not got in the same way" in forced.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "none.json"], "none.json can't be read"),
        (["report", "odd.json"], "odd.json is no result of a load test"),
        (["report", "a.json", "--html", "no/such.html"], "no/such.html can't be written"),
        (["compare", "a.json", "odd.json"], "odd.json is no result of a load test"),
        (["compare", "a.json", "a.json", "--noise", "2"], "share from 0 to 1"),
        (["compare", "a.json", "a.json", "--noise", "much"], "Invalid value"),
        (["compare", "a.json"], "Missing argument"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(words: list[str], told: str) -> None:
    written("a.json")
    Path("odd.json").write_text("{")
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert told in " ".join(done.output.split())
    assert "Traceback" not in done.output
