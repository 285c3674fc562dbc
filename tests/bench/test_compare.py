"""The comparison's plan and report, and the kit's runners, by a kit that is made up."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import compare, peers, regress

RESULT = '{"peer": "x", "n": 10, "cpu_s": 0.05, "completions_per_s": 100, "version": "v1"}'


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kit whose only peer is Restate's, installed; its runner prints a result."""
    folder, root = tmp_path / "kit", tmp_path / "root"
    binary = root / "venv-restate" / "bin" / "python"
    binary.parent.mkdir(parents=True)
    binary.symlink_to(sys.executable)
    folder.mkdir()
    (folder / "run_restate.py").write_text(f"print('noise')\nprint('{RESULT}')\n")
    monkeypatch.setenv("PEERS", str(folder))
    monkeypatch.setenv("PEERS_ROOT", str(root))
    return folder


def test_a_peers_result_is_read_and_given_by_unit(kit: Path) -> None:
    assert peers.installed() == peers.chosen("all") == ["restate", "restate-call"]
    line = peers.run("restate", "w1")
    assert line is not None
    assert line["cpu_ms_per_workflow"] == pytest.approx(5)
    assert line["cpu_ms_per_step"] == pytest.approx(0.5)


def test_a_peer_that_fails_gives_nothing_and_says_why(
    kit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kit / "run_restate.py").write_text("raise SystemExit('no port is free')\n")
    assert peers.run("restate", "w1") is None
    assert "no port is free" in capsys.readouterr().out


def test_a_peer_that_takes_too_long_is_ended_with_what_it_started(kit: Path) -> None:
    (kit / "run_restate.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        f"open({str(kit / 'pid')!r}, 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    assert peers.run("restate", "w1", timeout_s=2) is None
    pid = int((kit / "pid").read_text())
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_without_a_kit_no_peer_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEERS", raising=False)
    assert peers.chosen("all") == peers.chosen("none") == []
    with pytest.raises(SystemExit, match=r"restate can't run: \$PEERS must name"):
        peers.chosen("restate")


def row(rate: float, **more: Any) -> dict[str, Any]:
    """A result of the first workload."""
    return {"completions_per_s": rate, "cpu_ms_per_workflow": 1000 / rate, **more}


def test_systems_take_turns_and_medians_are_compared() -> None:
    rates = {"toque": iter((900.0, 1000.0, 1100.0)), "restate": iter((200.0, 100.0, 300.0))}
    order = []

    def one(name: str, workload: str, timeout_s: float) -> dict[str, Any]:
        order.append(name)
        return row(next(rates[name]), version="1.2")

    found = compare.Plan(["toque", "restate"], ["w1"], 3, 600).run(one)
    assert order == ["toque", "restate"] * 3
    assert compare.figures(found)["w1_restate"] == pytest.approx(5)
    text = compare.report(found)
    assert "| restate | 3 | 200 |" in text
    assert "restate: 1.2" in text


def test_what_does_not_fit_is_left_out_and_the_third_workload_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def one(name: str, workload: str, timeout_s: float) -> dict[str, Any]:
        now[0] += 40
        return {}

    plan = compare.Plan(["toque"], ["w1", "w3"], 3, 210)
    assert [turn for turn in plan.turns if turn[1] == "w3"] == [(0, "w3")]
    found = plan.run(one)
    assert [len(rows["toque"]) for rows in found.values()] == [3, 1]
    plan = compare.Plan(["toque"], ["w1", "w3"], 1, 100)
    assert [list(rows) for rows in plan.run(one).values()] == [["toque"], []], "it takes too long"


def test_what_was_found_is_kept_when_a_run_is_ended() -> None:
    def one(name: str, workload: str, timeout_s: float) -> dict[str, Any]:
        if name == "restate":
            raise KeyboardInterrupt
        return row(100)

    plan = compare.Plan(["toque", "restate"], ["w1"], 3, 600)
    with pytest.raises(KeyboardInterrupt):
        plan.run(one)
    assert plan.found == {"w1": {"toque": [row(100)]}}


def test_two_commits_are_compared_by_medians() -> None:
    runs = {
        "old": [{"rate": 100, "cpu_api_ms": 2.0, "x_ratio": 1.0, "other_cpu_cores": 1}],
        "new": [{"rate": 102, "cpu_api_ms": 1.0, "x_ratio": 1.2, "other_cpu_cores": 2}],
    }
    text = regress.report(runs, ("old", "new"))
    assert "| rate | 100 | 102 | 1.02 |  |" in text
    assert "| cpu_api_ms | 2 | 1 | 0.50 | better |" in text
    assert "| x_ratio | 1 | 1.2 | 1.20 | worse |" in text
    assert "other_cpu_cores" not in text
