"""The groups of the command line against a real server: many at once, tokens, accounts, events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_cli import Served
from toque.api import cli_exits
from toque.api.app_http import make_app
from toque.api.auth import ADMIN, OPERATOR, Principal, TokenBook
from toque.api.cli_bulk import Creates
from toque.api.cli_live import LiveSteps
from toque.api.server_http import HttpServer
from toque.api.watched import InstanceEvent, WatchError
from toque.api.wiring import start_embedded
from toque.engines.views import InstanceEvent as Happened
from toque.runtime.clock import SystemClock

APP = """
import toque


@toque.workflow
async def orders(event, step):
    return await step.do("pay", lambda: event.payload)
"""


class Whole:
    """A whole embedded runtime behind HTTP."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "app.py"
        self._path.write_text(APP)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[HttpServer]:
        boss = Principal(OPERATOR, ADMIN, "boss", "operator")
        tokens = TokenBook({"dev-token": "default", "operator-token": boss})
        data = self._path.parent / "data"
        async with start_embedded(data, app_path=self._path) as runtime:
            app = make_app(runtime.control_plane, tokens=tokens, version="test")
            async with HttpServer(app, SystemClock()) as server:
                yield server


@pytest.fixture
def toque(plane: Any) -> Iterator[Served]:
    with Served(plane) as served:
        yield served


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Served]:
    with Served(Whole(tmp_path)) as served:
        yield served


def ids(toque: Served, *words: str) -> list[str]:
    found = toque("instances", "list", "orders", "--limit", "0", "-o", "ids", *words)
    return sorted(found.stdout.split())


def test_many_are_created_from_a_file_or_from_stdin(toque: Served, tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"id": f"n{n}", "params": {"n": n}}) for n in range(230))
    file = tmp_path / "orders.jsonl"
    file.write_text(f"\n{lines}\n")
    made = toque("instances", "create-many", "orders", str(file))
    assert (made.exit_code, made.stdout) == (0, "230 created\n")
    again = toque("instances", "create-many", "orders", "-", "-o", "ids", input='{"id": "n1"}\n{}')
    assert len(again.stdout.split()) == 1
    both = toque("instances", "create-many", "orders", "-", input='{"id": "n1"}\n{"id": "m"}')
    assert both.stdout == "1 created, 1 there already\n"
    told = toque("instances", "create-many", "orders", "-", "-o", "json", input='{"id": "n1"}')
    assert json.loads(told.stdout)[0]["outcome"] == "duplicate"
    for text, words in (("{", "line 1 of stdin is not JSON"), ('{"iid": 1}', "'iid' is not known")):
        bad = toque("instances", "create-many", "orders", "-", input=text)
        assert (bad.exit_code, words in bad.stderr) == (cli_exits.USAGE, True), bad.stderr
    gone = toque("instances", "create-many", "orders", str(tmp_path / "none"))
    assert (gone.exit_code, "No such file" in gone.stderr) == (cli_exits.USAGE, True)
    lost = toque("instances", "create-many", "nothing", "-", input="{}")
    assert (lost.exit_code, "no workflow 'nothing'" in lost.stderr) == (cli_exits.NOT_FOUND, True)


BAD_LINES = [
    ("[", "is not JSON"),
    ("7", "must be a mapping"),
    ('{"iid": 1}', "'iid' is not known"),
    ('{"id": "a b"}', "'a b' is not valid"),
    ('{"id": "x", "retention": "soon"}', "is not a pair of durations"),
]


@pytest.mark.parametrize(("bad", "told"), BAD_LINES)
def test_a_wrong_line_is_named_before_anything_is_made(
    toque: Served, tmp_path: Path, bad: str, told: str
) -> None:
    good = [json.dumps({"id": f"n{n}"}) for n in range(250)]
    text = "\n".join(["", *good, bad])
    file = tmp_path / "orders.jsonl"
    file.write_text(text)
    for name, given in ((str(file), None), ("-", text)):
        done = toque("instances", "create-many", "orders", name, input=given)
        assert done.exit_code == cli_exits.USAGE, done.stderr
        assert f"line 252 of {'stdin' if name == '-' else name}" in done.stderr
        assert told in done.stderr
        assert "instance 250" not in done.stderr
    assert ids(toque) == []


def test_lines_that_failed_are_named_by_their_numbers(toque: Served, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('\n{"id": "a"}\n{}\n')
    lost = toque("instances", "create-many", "nothing", str(file))
    assert lost.stderr.startswith("toque: line 2 (a), line 3: failed: there is no workflow")
    told = toque("instances", "create-many", "orders", str(file), "-o", "json")
    assert [each["line"] for each in json.loads(told.stdout)] == [2, 3]


def test_what_was_made_is_told_when_the_rest_can_not_be(
    toque: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes between its two readings: it is checked, then it is sent."""
    file = tmp_path / "orders.jsonl"
    file.write_text("\n".join(json.dumps({"id": f"n{n}"}) for n in range(450)))
    check = Creates.check

    def and_then_spoil(creates: Creates) -> None:
        check(creates)
        with file.open("a") as more:
            more.write("\n{")

    monkeypatch.setattr(Creates, "check", and_then_spoil)
    done = toque("instances", "create-many", "orders", str(file))
    assert done.exit_code == cli_exits.USAGE
    assert "line 451" in done.stderr
    made = len(ids(toque))
    assert made > 0
    assert f"at least {made} created" in done.stderr


def test_what_is_not_there_to_be_changed_is_told(toque: Served) -> None:
    for words in (["--prefix", "zzz", "--yes"], ["-"]):
        done = toque("instances", "terminate", "orders", *words, input="")
        assert (done.exit_code, done.stdout) == (0, "")
        assert "nothing was changed" in done.stderr
    toque("create", "orders", "--id", "a")
    asked = toque("instances", "cancel", "orders", "a").stdout
    assert asked.startswith("a is ")
    assert "clean up" in asked
    for output in ("table", "ids"):
        gone = toque("instances", "pause", "orders", "nobody", "-o", output)
        assert (gone.exit_code, "nobody" in gone.stderr) == (cli_exits.NOT_FOUND, True)


def test_a_file_that_lacks_its_neighbour_is_to_be_deployed_as_a_folder(
    whole: Served, tmp_path: Path
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    app = folder / "app.py"
    app.write_text("from helpers_of_shop import orders\nimport missing_everywhere\n" + APP)
    (folder / "helpers_of_shop.py").write_text("orders = 1\n")
    alone = whole("deploy", str(app))
    assert alone.exit_code == cli_exits.USAGE
    assert f"deploy its folder, 'toque deploy {folder}'" in alone.stderr
    both = whole("deploy", str(folder))
    assert (both.exit_code, "missing_everywhere" in both.stderr) == (cli_exits.USAGE, True)
    assert "deploy its folder" not in both.stderr


def test_what_one_status_forbids_has_the_exit_code_of_that(whole: Served) -> None:
    made = whole("create", "orders", "--id", "a", "--wait")
    assert made.exit_code == 0, made.stderr
    for verb in ("pause", "terminate", "cancel"):
        done = whole("instances", verb, "orders", "a")
        assert (done.exit_code, done.stdout) == (cli_exits.CONFLICT, ""), done.stderr
    again = whole("instances", "restart", "orders", "a", "--from-step", "bye")
    assert again.exit_code == cli_exits.NOT_FOUND, again.stderr
    both = whole("instances", "pause", "orders", "a", "nobody")
    assert both.exit_code == cli_exits.FAILED
    boss = {"token": "operator-token"}
    assert whole("accounts", "create", "shop", **boss).exit_code == 0
    assert whole("accounts", "create", "shop", **boss).exit_code == cli_exits.CONFLICT


def test_ids_come_from_stdin(toque: Served) -> None:
    toque("instances", "create-many", "orders", "-", input='{"id": "a"}\n{"id": "b"}')
    done = toque("instances", "pause", "orders", "-", "-o", "ids", input="a\nb\n")
    assert sorted(done.stdout.split()) == ["a", "b"]
    assert ids(toque, "--status", "paused") == ["a", "b"]
    half = toque("instances", "delete", "orders", "a", "nobody")
    assert (half.exit_code, "nobody" in half.stderr) == (cli_exits.NOT_FOUND, True)


def test_what_matches_is_deleted_when_it_is_meant(toque: Served) -> None:
    rows = "\n".join(json.dumps({"id": f"n{n}"}) for n in range(130))
    toque("instances", "create-many", "orders", "-", input=rows)
    toque("instances", "pause", "orders", "n7")
    unsure = toque("instances", "delete", "orders", "--all")
    assert (unsure.exit_code, "give --yes" in unsure.stderr) == (cli_exits.USAGE, True)
    for words in (["n1", "--all"], []):
        both = toque("instances", "delete", "orders", *words)
        assert (both.exit_code, "one of both" in both.stderr) == (cli_exits.USAGE, True)
    done = toque("instances", "delete", "orders", "--status", "queued", "--yes", "-o", "json")
    assert len(json.loads(done.stdout)["changed"]) == 129
    assert ids(toque) == ["n7"]


def test_whoami_accounts_and_tokens(whole: Served) -> None:
    toque = whole

    def boss(*words: str) -> Any:
        return toque(*words, token="operator-token")

    who = json.loads(toque("whoami", "-o", "json").stdout)
    assert set(who) == {"account", "scope", "token_id", "name"}
    mine = toque("accounts", "create", "shop")
    assert (mine.exit_code, "operator" in mine.stderr) == (cli_exits.REFUSED, True)
    made = boss("accounts", "create", "shop", "--name", "The shop", "-o", "json")
    assert json.loads(made.stdout)["id"] == "shop"
    assert "shop" in boss("accounts", "list", "-o", "ids").stdout.split()
    assert "The shop" in boss("accounts", "show", "shop").stdout
    token = boss("tokens", "create", "ci", "--scope", "read", "--account", "shop",
                  "--expires-in", "30 days")  # fmt: skip
    assert token.exit_code == 0, token.stderr
    text = token.stdout.strip()
    assert text.startswith("tq_")
    assert "not shown again" in token.stderr
    listed = boss("tokens", "list", "--account", "shop", "-o", "json")
    (one,) = json.loads(listed.stdout)
    assert (one["name"], one["scope"], "token" in one) == ("ci", "read", False)
    assert text not in boss("tokens", "list", "--account", "shop").stdout
    assert toque("workflows", "list", "--account", "shop", token=text).exit_code == 0
    refused = toque("tokens", "list", "--account", "shop", token=text)
    assert refused.exit_code == cli_exits.REFUSED
    assert boss("tokens", "revoke", one["id"], "--account", "shop").exit_code == 0
    assert boss("tokens", "list", "--account", "shop", "-o", "ids").stdout == ""
    bad = toque("tokens", "create", "ci", "--scope", "all")
    assert (bad.exit_code, "scope must be one of" in bad.stderr) == (cli_exits.USAGE, True)


def test_an_account_on_v1_is_made_and_shown_as_such(whole: Served) -> None:
    def boss(*words: str) -> Any:
        return whole(*words, token="operator-token")

    made = boss("accounts", "create", "old", "--control-plane", "v1", "-o", "json")
    assert json.loads(made.stdout)["control_plane"] == "v1", made.stderr
    boss("accounts", "create", "new")
    listed = json.loads(boss("accounts", "list", "-o", "json").stdout)
    planes = {each["id"]: each["control_plane"] for each in listed}
    assert planes == {"default": "v2", "new": "v2", "old": "v1"}
    shown = boss("accounts", "show", "old").stdout.split()
    assert (shown[:4], shown[6]) == (["ID", "NAME", "PLANE", "CREATED"], "v1")
    again = boss("accounts", "create", "new", "--control-plane", "v1")
    assert (again.exit_code, "only a new account" in again.stderr) == (cli_exits.CONFLICT, True)
    typo = boss("accounts", "create", "other", "--control-plane", "v3")
    assert typo.exit_code == cli_exits.USAGE
    assert boss("workflows", "list", "--account", "old").exit_code == 0


def test_events_are_a_line_each(toque: Served) -> None:
    toque("create", "orders", "--id", "one")
    toque.plane.router.events = [Happened(3, "step_completed", 1_700_000_000_000, "charge-1")]
    for words in (["events", "list"], ["events", "follow"], ["instances", "describe"]):
        more = ["--follow"] if words[1] == "describe" else []
        shown = toque(*words, "orders", "one", *more)
        assert "step_completed" in shown.stdout, shown.stderr
        told = toque(*words, "orders", "one", *more, "-o", "json")
        assert json.loads(told.stdout.splitlines()[0])["type"] == "step_completed"


def event(no: int, kind: str, step: str | None = None, **more: Any) -> InstanceEvent:
    return InstanceEvent(no, "one", kind, 1_700_000_000_000 + no, step, **more)


def test_the_live_list_follows_each_step() -> None:
    live = LiveSteps()
    live.take(event(1, "workflow_started"))
    live.take(event(2, "step_started", "charge-1"))
    live.take(event(3, "attempt_started", "charge-1", attempt=1))
    error = WatchError("ValueError", "no")
    live.take(event(4, "attempt_errored", "charge-1", attempt=1, error=error, retry_delay_ms=10))
    _, ((name, state, attempt, *_, result),) = live.rows(5)
    assert (name, state, attempt, result) == (
        "charge-1", "retries after 10 ms", "1", "ValueError: no"
    )  # fmt: skip
    live.take(event(5, "attempt_started", "charge-1", attempt=2))
    live.take(event(6, "step_completed", "charge-1", output={"paid": True}))
    live.take(event(7, "wait_started", "ask-1"))
    live.take(event(8, "wait_timed_out", "ask-1"))
    live.take(event(9, "sleep_started", "nap-1"))
    live.take(event(10, "workflow_completed"))
    left_out, rows = live.rows(2)
    assert (left_out, live.status) == (1, "completed")
    assert [row[:2] for row in rows] == [("ask-1", "timed out"), ("nap-1", "waiting")]
    assert live.rows(9)[1][0][1:3] == ("complete", "2")


def test_limits_and_versions(whole: Served) -> None:
    shown = json.loads(whole("limits", "show", "-o", "json").stdout)
    assert shown["running_max"] == 50_000
    done = whole("limits", "set", "--running-max", "7", "--success-retention", "3 days",
                 "-o", "json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["running_max"], found["success_retention"]) == (7, 3 * 86_400_000)
    assert "3 days" in whole("limits", "show").stdout
    back = whole("limits", "set", "--success-retention", "default", "-o", "json")
    assert json.loads(back.stdout)["success_retention"] is None
    back = whole("limits", "set", "--running-max", "default", "-o", "json")
    assert json.loads(back.stdout)["running_max"] == 50_000
    one = whole("limits", "set", "orders", "--weight", "2", "-o", "json")
    assert json.loads(one.stdout)["weight"] == 2, one.stderr
    assert "none of its own" in whole("limits", "show", "orders").stdout
    assert "weight" in whole("limits", "show", "orders", "-o", "ids").stdout.split()
    for words, told in (
        (["--weight", "2"], "is of a workflow"),
        ([], "name what to change"),
        (["--running-max", "many"], "must be a whole number"),
        (["--success-retention", "soon"], "success_retention"),
    ):
        bad = whole("limits", "set", *words)
        assert (bad.exit_code, told in bad.stderr) == (cli_exits.USAGE, True), bad.stderr
    versions = json.loads(whole("workflows", "versions", "orders", "-o", "json").stdout)
    assert len(versions) == 1
    unsure = whole("workflows", "delete", "orders")
    assert (unsure.exit_code, "give --yes" in unsure.stderr) == (cli_exits.USAGE, True)
    assert whole("workflows", "delete", "orders", "--yes").exit_code == 0
    assert whole("workflows", "describe", "orders").exit_code == cli_exits.NOT_FOUND
