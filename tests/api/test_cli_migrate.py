"""`toque migrate` against a real server: accounts on V1 move, hold, and are taken back."""

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
from toque.api.cli_migrate import drained, has_come
from toque.api.client_values import Migration, OldInstances
from toque.api.server_http import HttpServer
from toque.api.wiring import start_embedded
from toque.runtime.clock import SystemClock
from toque.runtime.ids import EntityRef, old_key

ON_V1 = ("shop", "depot")


class Whole:
    """A whole embedded runtime behind HTTP, with two accounts on V1."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[HttpServer]:
        boss = Principal(OPERATOR, ADMIN, "boss", "operator")
        tokens = TokenBook({"dev-token": "default", "operator-token": boss})
        async with start_embedded(self._data, app_path=None) as runtime:
            for account in ON_V1:
                await runtime.control_plane.accounts.ensure_account(account)
                await runtime.router.call(EntityRef("Account", account), "set_plane", "v1")
                await runtime.router.call(EntityRef("AccountOld", old_key(account)), "begin")
            app = make_app(runtime.control_plane, tokens=tokens, version="test")
            async with HttpServer(app, SystemClock()) as server:
                yield server


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(Whole(tmp_path)) as served:
        yield served


def test_accounts_move_hold_and_are_taken_back(served: Served, tmp_path: Path) -> None:
    def boss(*words: str) -> Any:
        return served("migrate", *words, token="operator-token")

    def states(*words: str) -> dict[str, str]:
        found = json.loads(boss(*words, "--json").stdout)
        return {each["account"]: each["state"] for each in found}

    plans = boss("plan", "shop", "default")
    assert plans.exit_code == cli_exits.CONFLICT
    assert "shop: can be moved\n  1. freeze:" in plans.stdout
    assert "default: can't be moved now\n  against it: It is not on V1" in plans.stdout
    ready = boss("plan", "shop", "-o", "ids")
    assert (ready.exit_code, ready.stdout) == (0, "shop\n")

    assert states("status", "shop") == {"shop": "none"}
    names = tmp_path / "names.txt"
    names.write_text("shop\ndepot\n")
    assert states("start", "--file", str(names), "--per-minute", "0.1") == {
        "shop": "planned",
        "depot": "planned",
    }
    watched = boss("watch", "shop")
    assert watched.exit_code == 0, watched.stderr
    assert "shop  drained  nothing left" in watched.stdout or "retired" in watched.stdout
    assert states("status", "--all") == {"depot": "planned"}, "the other begins in ten minutes"
    (depot,) = json.loads(boss("pause", "depot", "--json").stdout)
    assert (depot["holds"], depot["abortable"], depot["starts_on"] is None) == (True, True, False)
    assert "planned, holds" in boss("status", "depot").stdout
    again = boss("start", "depot")
    assert (again.exit_code, "being moved already" in again.stderr) == (cli_exits.CONFLICT, True)
    both = boss("abort", "shop", "depot", "-o", "ids")
    assert (both.exit_code, both.stdout) == (cli_exits.CONFLICT, "depot\n")
    assert "toque: shop: " in both.stderr
    failed = boss("watch", "depot", "--json")
    assert (failed.exit_code, json.loads(failed.stdout)["state"]) == (cli_exits.FAILED, "aborted")


def test_what_is_asked_wrongly_changes_nothing(served: Served, tmp_path: Path) -> None:
    def boss(*words: str) -> Any:
        return served("migrate", *words, token="operator-token")

    for words, told in (
        (("start", "shop", "--per-minute", "0"), "--per-minute is more than 0"),
        (("start", "--all"), "give --yes"),
        (("status", "shop", "--all"), "not both"),
        (("watch", "shop", "--until", "frozen"), "--until is routed"),
        (("status", "--file", "nowhere"), "No such file"),
    ):
        bad = boss(*words)
        assert (bad.exit_code, told in bad.stderr) == (cli_exits.USAGE, True), bad.stderr
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    empty, binary = str(tmp_path / "empty"), str(tmp_path / "binary")
    slow = ("start", "shop", "depot", "--per-minute", "0.00001")
    for words, told in (
        (("start", "--file", empty), f"{empty} names no account"),
        (("abort", "-"), "stdin names no account"),
        (("start", "--file", binary), "no text in UTF-8"),
        (slow, "69.4 days hence"),
    ):
        bad = boss(*words)
        assert (bad.exit_code, told in bad.stderr) == (cli_exits.USAGE, True), bad.stderr
    states = boss("status", "shop", "depot", "nobody", "default", "--json")
    assert states.exit_code == cli_exits.NOT_FOUND, "one that is unknown stops no other"
    assert [each["state"] for each in json.loads(states.stdout)] == ["none"] * 3
    own = boss("status", "--account", "depot", "--json")
    assert json.loads(own.stdout)[0]["account"] == "depot", "the account of the settings"
    gone = boss("start", "nobody")
    assert (gone.exit_code, "no account 'nobody'" in gone.stderr) == (cli_exits.NOT_FOUND, True)
    none = boss("abort", "shop")
    assert (none.exit_code, "is not being moved" in none.stderr) == (cli_exits.NOT_FOUND, True)
    mine = served("migrate", "status", "default")
    assert mine.exit_code == cli_exits.REFUSED, "it is for operators"


def test_all_are_those_that_are_not_moved_yet(served: Served) -> None:
    def boss(*words: str) -> Any:
        return served("migrate", *words, token="operator-token")

    assert boss("start", "depot", "--per-minute", "1").exit_code == 0
    rest = boss("start", "--all", "--yes", "-o", "ids")
    assert (rest.exit_code, rest.stdout) == (0, "shop\n"), rest.stderr
    again = boss("start", "--all", "-o", "ids")
    assert (again.exit_code, again.stdout) == (0, ""), "nothing is left to be asked"


def test_progress_is_read_off_a_migration() -> None:
    def at(state: str, before: int = 10, now: int = 4) -> Migration:
        found = OldInstances(waiting=before), OldInstances(unborn=1, queued=now - 1)
        return Migration("shop", state, at_freeze=found[0], instances=found[1])

    assert drained(at("healed")) == (6, 10)
    assert drained(Migration("shop", "planned")) == (0, 0)
    assert [has_come(at(state), "healed") for state in ("routed", "healed", "retired")] == [
        False, True, True,
    ]  # fmt: skip
    assert has_come(at("aborted"), "retired")
    assert not has_come(at("aborting"), "routed")
