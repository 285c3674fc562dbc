"""The command line against a real server: answers, JSON, exit codes, one sentence for errors."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from toque.api import cli_exits
from toque.api.cli import COMMANDS, app, load
from toque.api.cli_output import print_instance
from toque.api.client_values import InstanceStatus, StepStatus
from toque.runtime import limits


class Served:
    """A server in a thread of its own, and the command line pointed at it."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)

    def __enter__(self) -> Served:
        self._thread.start()
        self._serving = self.plane.serving()
        self.url = self.wait_for(self._serving.__aenter__()).url
        return self

    def __exit__(self, *error: object) -> None:
        self.wait_for(self._serving.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_for(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __call__(self, *words: str, token: str = "dev-token", env: Any = None, **more: Any) -> Any:
        whole = {"TOQUE_URL": self.url, "TOQUE_TOKEN": token, "COLUMNS": "200", **(env or {})}
        return CliRunner().invoke(app, words, env=whole, **more)


@pytest.fixture
def toque(plane: Any) -> Iterator[Served]:
    with Served(plane) as served:
        yield served


def test_create_list_describe(toque: Served) -> None:
    made = toque("create", "orders", "--id", "a/1", "--params", '{"n": 1}')
    assert (made.exit_code, made.stdout) == (0, "a/1\n")
    made = toque("create", "orders", "--params", "-", "--json", input="[1]")
    assert json.loads(made.stdout)["status"] == "queued"
    listed = toque("instances", "list", "orders", "--json")
    assert "a/1" in [line["id"] for line in json.loads(listed.stdout)]
    assert "a/1" in toque("instances", "list", "orders", "--status", "queued").stdout
    assert (
        len(json.loads(toque("instances", "list", "orders", "--limit", "1", "--json").stdout)) == 1
    )
    shown = toque("instances", "describe", "orders", "a/1", "--json")
    assert json.loads(shown.stdout)["params"] == {"n": 1}
    assert '{"n":1}' in toque("instances", "describe", "orders", "a/1").stdout
    assert toque("instances", "describe", "orders", "latest").exit_code == 0
    assert "queued=2" in toque("workflows", "list").stdout
    assert json.loads(toque("workflows", "list", "--json").stdout)[0]["name"] == "orders"
    assert "orders" in toque("workflows", "describe", "orders").stdout


def test_create_and_wait_and_act(toque: Served) -> None:
    toque.plane.router.finishes_at_once = True
    done = toque("create", "orders", "--wait", "--json")
    assert (done.exit_code, json.loads(done.stdout)["output"]) == (0, {"done": True})
    toque.plane.router.finishes_at_once = False
    late = toque("create", "orders", "--id", "one", "--wait", "--timeout", "50ms")
    assert late.exit_code == cli_exits.TOO_LATE
    told = "toque: instance 'one' of 'orders' is queued after 0.05 s; it goes on"
    assert late.stderr.startswith(told)
    late = toque("instances", "wait", "orders", "one", "--timeout", "50ms", "--json")
    assert late.exit_code == cli_exits.TOO_LATE
    assert json.loads(late.stderr)["error"]["data"]["id"] == "one"
    sent = toque("instances", "send-event", "orders", "one", "go", "--payload", "{}")
    assert sent.exit_code == 0
    assert toque("instances", "terminate", "orders", "one").exit_code == 0
    ended = toque("instances", "wait", "orders", "one")
    assert ended.exit_code == 1
    assert "terminated" in ended.stdout


def test_steps_are_shown(toque: Served) -> None:
    toque("create", "orders", "--id", "one")
    engine = toque.plane.router.engine("one")
    engine.view = type(engine.view)(
        **{f: getattr(engine.view, f) for f in engine.view.__struct_fields__ if f != "steps"},
        steps=toque.plane.steps,
    )
    shown = toque("instances", "describe", "orders", "one").stdout
    assert "retries at 2023-11-14T22:13:31.000Z" in shown
    assert "ValueError: no" in shown


def test_a_rollback_shows_how_it_stands_as_a_step_does(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        StepStatus("rollback", f"rollback {name}-1", "then", success=success, attempts_total=2)
        for name, success in (("a", True), ("b", False), ("c", None))
    ]
    print_instance("orders", InstanceStatus("one", "errored", steps=steps))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [line[3:5] for line in lines if line[:1] == ["rollback"]]
    assert shown == [["complete", "2"], ["errored", "2"], ["running", "2"]]


def test_a_child_that_has_ended_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        StepStatus(kind, f"leaf-{n}", "then", success=success)
        for n, (kind, success) in enumerate(
            [("startChild", True), ("startChild", None), ("child", True), ("child", None)]
        )
    ]
    print_instance("orders", InstanceStatus("one", "running", steps=steps))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [line[2] for line in lines if line[:1] and line[0].startswith("leaf")]
    assert shown == ["complete", "waiting", "complete", "waiting"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("create", "nothing"), 4, "there is no workflow 'nothing'"),
        (("create", "nothing"), 4, "There is orders."),
        (("create", "Order"), 4, "Did you mean 'orders'?"),
        (("instances", "pause", "ORDERS", "a"), 4, "Did you mean 'orders'?"),
        (("workflows", "list", "--token", "x"), 3, "the token that comes from --token"),
        (("limits", "set", "--running-max", "-3"), 2, "--running-max '-3' must be a whole number"),
        (("limits", "set", "orders", "--souschefs", "x"), 2, "from 0 on, 'auto', or 'default'"),
        (("limits", "set", "--queued-max", "3"), 2, "'toque limits set orders --queued-max 2'"),
        (("workflows", "describe", "nothing"), 4, "there is no workflow"),
        (("instances", "describe", "orders", "nobody"), 4, "there is no instance"),
        (("instances", "describe", "orders", "latest"), 4, "there is no instance"),
        (("create", "orders", "--id", "a b"), 2, "instance id 'a b' is not valid"),
        (("create", "orders", "--params", "{"), 2, "params is not JSON"),
        (("create", "orders", "--params", "@no-such-file"), 2, "No such file"),
        (("create", "orders", "--wait", "--timeout", "soon"), 2, "is no duration"),
        (("instances", "list", "orders", "--status", "asleep"), 2, "is not one of"),
        (("create",), 2, "Missing argument"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_errors_are_a_sentence_and_a_code(
    toque: Served, words: tuple[str, ...], code: int, told: str
) -> None:
    found = toque(*words)
    assert found.exit_code == code
    assert told in found.stderr
    assert "Traceback" not in found.stderr


def test_the_wrong_use_of_an_option_is_told(toque: Served) -> None:
    late = toque("create", "orders", "--timeout", "5s")
    assert (late.exit_code, late.stderr) == (
        2,
        "toque: --timeout says how long --wait waits; give --wait too.\n",
    )
    assert not toque.plane.router.engines
    for token in ("a\nb", "tok\u00e9n", "\x7f"):
        bad = toque("workflows", "list", token=token)
        assert (bad.exit_code, "TOQUE_TOKEN: token is its value, but" in bad.stderr) == (2, True)
        assert "Traceback" not in bad.stderr
    for url in ("http://", "http://[", "http://a b"):
        assert toque("workflows", "list", "--url", url).exit_code == 2
    many = toque("dev", "app.py", "--shards", str(limits.SHARDS_MAX + 1))
    assert (many.exit_code, f"equal to {limits.SHARDS_MAX}" in many.stderr) == (2, True)


@pytest.mark.parametrize("name", ["TOQUE_TIMEOUT", "TOQUE_RETRY_FOR"])
def test_a_setting_that_is_no_duration_is_told_once(toque: Served, name: str) -> None:
    bad = toque("workflows", "list", env={name: "abc"})
    key = name.removeprefix("TOQUE_").lower()
    assert bad.exit_code == cli_exits.USAGE
    assert bad.stderr.startswith(f"toque: {name}: {key} is 'abc', but it is no duration. Right: ")


def test_where_no_server_is_the_origin_of_the_url_is_told(toque: Served) -> None:
    gone = toque("workflows", "list", "--url", "http://127.0.0.1:1", env={"TOQUE_RETRY_FOR": "0"})
    assert gone.exit_code == cli_exits.UNAVAILABLE
    assert "the url comes from --url" in gone.stderr


def test_statuses_may_stand_with_commas_and_what_is_left_out_is_told(toque: Served) -> None:
    for name in ("a", "b", "c"):
        toque("create", "orders", "--id", name)
    toque("instances", "pause", "orders", "a")
    words = ("instances", "list", "orders", "-o", "ids")
    found = toque(*words, "--status", "queued, paused", "--limit", "3")
    assert (sorted(found.stdout.split()), found.stderr) == (["a", "b", "c"], "")
    cut = toque(*words, "--limit", "2")
    assert (len(cut.stdout.split()), "--limit 0 lists all" in cut.stderr) == (2, True)
    both = toque("instances", "pause", "orders", "--status", "queued,paused", "--yes")
    assert len(both.stdout.splitlines()) + len(both.stderr.splitlines()) == 3


def test_times_are_whole_at_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    step = StepStatus(
        "step", "charge the card-1", "2026-01-31T22:13:31.123Z", "2026-02-01T00:00:01.000Z",
        success=True, output={"x": "y" * 60},
    )  # fmt: skip
    status = InstanceStatus("one", "complete", steps=[step], created_on="2026-01-31T22:13:30.000Z")
    print_instance("orders", status)
    shown = capsys.readouterr().out
    assert "22:13:31.123" in shown
    assert "02-01 00:00:01" in shown


def test_the_version_and_the_usage(toque: Served) -> None:
    assert toque("--version").stdout.startswith("toque ")
    assert "--version" in toque().stdout
    for words in (("-h",), ("instances", "-h"), ("instances", "list", "-h")):
        assert (toque(*words).exit_code, "Usage:" in toque(*words).stdout) == (0, True)


def test_a_table_that_is_piped_keeps_each_row_on_a_line(toque: Served) -> None:
    name = "folder/" + "x" * 200
    toque("create", "orders", "--id", name)
    narrow = toque("instances", "list", "orders", env={"COLUMNS": "80"})
    (line,) = [line for line in narrow.stdout.splitlines() if "folder" in line]
    assert line.split()[:2] == [name, "queued"]
    shown = toque("instances", "describe", "orders", name, env={"COLUMNS": "80"}).stdout
    assert name in shown


def test_what_create_has_waited_for_is_whole(toque: Served) -> None:
    toque.plane.router.finishes_at_once = True
    toque.plane.router.steps = toque.plane.steps
    for words in (("--wait",), ("--wait", "--json")):
        done = toque("create", "orders", "--params", '{"n": 1}', *words)
        assert "charge-1" in done.stdout
        assert '"n":1' in done.stdout.replace(" ", "")


def test_json_errors_and_tokens(toque: Served) -> None:
    found = toque("create", "nothing", "--json")
    assert json.loads(found.stderr)["error"]["code"] == "workflow.not_found"
    found = toque("workflows", "list", token="wrong")
    assert (found.exit_code, found.stderr) == (
        cli_exits.REFUSED,
        f"toque: {toque.url} does not know the token that comes from TOQUE_TOKEN: it was revoked, "
        "has expired, is another server's, or is not whole.\n",
    )


def test_the_table_of_commands_tells_what_the_commands_tell() -> None:
    for name, entry in COMMANDS.items():
        assert load(name).get_short_help_str(200) == entry.help


def test_the_help_of_the_whole_loads_no_command(tmp_path: Path) -> None:
    program = (
        "import sys; from toque.api.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "names = {m.split('.')[-1] for m in sys.modules}\n"
        "assert not names & {'client', 'engine', 'aiohttp', 'service'}, names"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True)


def test_shared_options_stand_before_or_after_the_command(toque: Served) -> None:
    toque("create", "orders", "--id", "a")
    for words in (("-o", "ids", "instances", "list", "orders"),
                  ("instances", "list", "orders", "-o", "ids"),
                  ("-o", "json", "instances", "list", "orders", "-o", "ids")):  # fmt: skip
        assert toque(*words).stdout == "a\n"
    assert toque("workflows", "list", "-o", "ids").stdout == "orders\n"


def test_arguments_are_shown_plainly(toque: Served) -> None:
    assert "dev [OPTIONS] APP.py" in toque("dev", "--help").stdout
    assert "why [OPTIONS] WORKFLOW ID" in toque("instances", "why", "--help").stdout
    assert "pause [OPTIONS] WORKFLOW [ID]..." in toque("instances", "pause", "--help").stdout


def test_files_and_directories_that_can_not_be_used_are_exit_code_2(
    toque: Served, tmp_path: Path
) -> None:
    none = str(tmp_path / "none")
    for words in (("doctor", "--data", none), ("formats", "--data", none),
                  ("deploy", f"{none}.py")):  # fmt: skip
        found = toque(*words)
        assert (found.exit_code, found.stderr.startswith("toque: ")) == (cli_exits.USAGE, True)
