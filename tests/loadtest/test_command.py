"""`toque loadtest` as people call it: exit codes, files, Ctrl-C, sentences for what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import has_ended
from toque.actors import keeper
from toque.api.cli import app
from toque.loadtest.result import read_result

COMMAND = [sys.executable, "-m", "toque.api.cli", "loadtest"]


def environment() -> dict[str, str]:
    """Without settings of toque."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOQUE_")}


def loadtest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A test that ends by itself."""
    return subprocess.run(
        [*COMMAND, *words],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_it_starts_a_server_tests_it_and_writes_what_came_of_it(tmp_path: Path) -> None:
    words = ["steady", "--no-ray", "--rate", "30", "--duration", "1s"]
    words += ["--out", "result.json", "--html", "report.html"]
    done = loadtest(tmp_path, *words, "--slo", "p99_start_ms=60000", "--slo", "error_rate=0")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "sending" in done.stderr
    result = read_result(tmp_path / "result.json")
    assert result.counts.completed == result.counts.offered == 30
    assert [each.met for each in result.slos] == [True, True]
    assert (result.target.kind, result.machine.fsync_ms is None) == ("server", False)
    assert "<html" in (tmp_path / "report.html").read_text()
    assert not list(tmp_path.glob(".toque*"))


def test_a_missed_objective_is_exit_code_1(tmp_path: Path) -> None:
    done = loadtest(tmp_path, "burst", "--embedded", "-n", "20", "--slo", "max_end_ms=0",
                    "--quiet", "-o", "json")  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["schema"] == "toque.loadtest/1"
    assert told["slos"][0]["met"] is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["storm"], "No such command"),
        (["steady", "--rate", "fast"], "Invalid value"),
        (["steady", "--rate", "0"], "--rate is 0; it must be"),
        (["steady", "--duration", "soon"], "is no duration"),
        (["steady", "--slo", "p99=1"], "--slo p99_start_ms=100"),
        (["steady", "--workflow", "a b"], "workflow name 'a b' is not valid"),
        (["steady", "--work", "nothing"], "Invalid value"),
        (["steady", "--out", "nowhere/r.json"], "there is no folder nowhere"),
        (["steady", "--url", "localhost"], "must start with http"),
        (["steady", "--embedded", "--fresh"], "leave --url and --fresh out"),
        (["burst", "-n", "0"], "--count is 0"),
        (["burst", "--server-embedded", "--shards", "0"], "--shards must be 1 to"),
        (["burst", "--embedded", "--shards", "2"], "leave --shards out"),
        (["burst", "--embedded", "--server-embedded"], "leave --server-embedded out"),
        (["burst", "--url", "http://127.0.0.1:9", "--shards", "2"], "--fresh"),
        (["burst", "--url", "http://127.0.0.1:9", "--no-ray"], "--fresh"),
        (["burst", "-n", "99999999"], "it must be 1 to 10,000,000"),
        (["burst", "--drain", "99999d"], "--drain is '99999d'; it must be at most 365 days"),
        (["chaos", "--no-ray"], "leave --server-embedded out"),
        (["mixed", "--mix", "dance=1"], "is no weight"),
        (["burst", "--embedded", "--processes", "2"], "can't reach an embedded runtime"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_code_2_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["loadtest", *words], env={"COLUMNS": "200"})
    assert found.exit_code == 2, found.output
    assert told in found.stderr
    assert "Traceback" not in found.output


def test_a_server_that_is_not_there_is_exit_code_7(tmp_path: Path) -> None:
    done = loadtest(tmp_path, "burst", "--url", "http://127.0.0.1:9", "--quiet")
    assert done.returncode == 7
    assert "no connection" in done.stderr


def test_ctrl_c_writes_what_there_was_and_ends_the_server(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "steady", "--no-ray", "--rate", "50", "--duration", "10m", "--out", "r.json"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        while (line := process.stderr.readline()) and "accepted" not in line:
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    result = read_result(tmp_path / "r.json")
    assert result.stopped_early == "interrupted"
    assert 0 < result.counts.accepted < 10_000
    assert result.target.url is not None
    gone = loadtest(tmp_path, "burst", "--url", result.target.url, "--quiet")
    assert gone.returncode == 7


def test_ctrl_c_before_anything_was_sent_ends_it_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "steady", "--server-embedded", "--out", "r.json"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "starting" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (told, "sending" in errors, "Traceback" in errors) == ("", False, False)
    assert not list(tmp_path.iterdir())


def test_the_server_ends_with_a_test_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "steady", "--no-ray", "--rate", "5", "--duration", "10m"],
        cwd=tmp_path, env={**environment(), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        while (line := process.stderr.readline()) and "sending" not in line:
            pass
        servers = [
            each
            for each in keeper.offspring([process.pid])
            if "toque.loadtest.served" in keeper.command(each.pid)
        ]
    finally:
        process.kill()
        process.communicate()
    assert len(servers) == 1
    try:
        assert has_ended(servers[0].pid, 60_000)
    finally:
        keeper.end(servers)
