"""`toque up`: its first token, its end in order, its words to a service manager, its refusals."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path

import pytest

from tests.api.serving import fails, get, up
from toque.api import cli_up
from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.client_http import connect
from toque.api.first_token import MARK, hand_over
from toque.api.logs import JsonLines
from toque.api.notify_socket import Notifier
from toque.api.server_http import HttpServer
from toque.api.serving import Hosted, start_code
from toque.api.wiring import embedded, start_embedded
from toque.runtime.clock import SystemClock
from toque.runtime.errors import (
    AddressInUse,
    DataDirFormat,
    DataDirInUse,
    InvalidArgument,
    StoreFailed,
    WorkflowLoadError,
)

APP = """
import os
import toque

assert "TOQUE_TOKEN" not in os.environ

@toque.workflow
async def hello(event, step):
    return await step.do("greet", lambda: f"hello {event.payload}")
"""
WORDS = ("--data", "data", "--embedded", "--port", "0", "--log-format", "json")


def test_it_serves_and_ends_in_order(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    token_file = tmp_path / "token"
    words = ("app.py", *WORDS, "--metrics-port", "0", "--drain", "1.5")
    env = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "60000000",
        "TOQUE_TOKEN": "a client's",
    }
    with up(tmp_path, (*words, "--first-token-file", str(token_file)), env=env) as served:
        assert served.told["workflows"] == ["hello"]
        assert served.told["operator_token"] is None
        assert served.told["dashboard_url"] == f"{served.told['url']}/dashboard/"
        assert get(served.told["dashboard_url"])[0] == 200
        assert b"READY=1" in manager.recv(1000)
        assert manager.recv(1000) == b"WATCHDOG=1"
        token = token_file.read_text().strip()
        assert token_file.stat().st_mode & 0o777 == 0o600
        status, who = served.get("/toque/v1/whoami", token)
        assert (status, who["result"]["account"], who["result"]["scope"]) == (200, "*", "admin")
        assert served.get("/readyz") == (200, {"status": "ready"})
        assert served.get("/toque/v1/whoami")[0] == 401
        assert "toque_shard_up" in get(served.told["metrics_url"])[1]
        for words_in_use, told in (
            (("--data", "other", "--port", served.told["url"].rpartition(":")[2]), "is in use;"),
            (("--data", "data", "--port", "0"), "is in use by process"),
        ):
            code, error = fails(tmp_path, "app.py", "--embedded", *words_in_use)
            assert (code, told in error, len(error.splitlines())) == (1, True, 1), error
        served.stop()
        assert b"STOPPING=1" in manager.recv(1000)
        assert served.get("/readyz") == (503, {"status": "not ready"})
        assert served.get("/toque/v1/whoami", token)[0] == 200  # it goes on with its work
    manager.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any("draining" in line["message"] for line in lines)
    at_rest = b"".join(p.read_bytes() for p in (tmp_path / "data").rglob("*") if p.is_file())
    assert token.encode() not in at_rest
    with up(tmp_path, (*WORDS, "--drain", "0")) as served:  # no app file: accounts, deployed code
        assert served.told["operator_token"] is None  # it was handed over before
        assert served.get("/toque/v1/whoami", token)[0] == 200
        output = asyncio.run(deployed(served.told["url"], token, tmp_path / "app.py"))
        assert output == "hello you"


def test_the_account_of_a_new_directory_may_be_on_v1(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    token_file = tmp_path / "token"
    words = ("app.py", *WORDS, "--drain", "0", "--first-token-file", str(token_file))
    with up(tmp_path, (*words, "--control-plane", "v1", "--no-dashboard")) as served:
        assert served.told["dashboard_url"] is None
        assert served.get("/dashboard/")[0] == 401
        token = token_file.read_text().strip()
        _, found = served.get("/toque/v1/accounts/default", token)
        assert found["result"]["control_plane"] == "v1"
        assert served.get("/readyz") == (200, {"status": "ready"})
    code, error = fails(tmp_path, *words, "--control-plane", "v2")
    assert (code, "made on control plane v1" in error) == (2, True), error


async def deployed(url: str, token: str, path: Path) -> object:
    """The output of an instance of code that has just been deployed."""
    async with connect(url, token, "tenant") as client:
        await client.accounts.create("tenant")
        await client.deploy(path, "app")
        status = await client.run_instance("hello", params="you")
        return status.output


def test_a_start_that_was_cut_short_locks_nobody_out(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "token"

    async def main() -> None:
        async with embedded(data) as runtime:
            accounts = runtime.control_plane.accounts
            told: list[str] = []
            with pytest.raises(FileNotFoundError):  # as if killed between token and file
                await hand_over(accounts, data, tmp_path / "none" / "token", told.append)
            assert not (data / MARK).exists()
            await hand_over(accounts, data, file, told.append)
            first = file.read_text()
            await hand_over(accounts, data, file, told.append)
            assert (file.read_text(), told) == (first, [])
            (data / MARK).unlink()  # who has lost it
            await hand_over(accounts, data, None, told.append)
            assert len(told) == 1
            assert told[0] != first.strip()
            assert len(await accounts.list_tokens("*")) == 1

    asyncio.run(main())


def test_a_start_whose_port_somebody_takes_meanwhile_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, checked = tmp_path / "data", cli_up.check_address
    hosted = Hosted(start_embedded, "one process", None, data, {})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.socket() as taken:
        options = cli_up.UpOptions(
            hosted, "127.0.0.1", port, None, None, False, 0, True, None, "text", True
        )

        async def then_taken(host: str, port: int, flag: str) -> None:
            await checked(host, port, flag)
            taken.bind((host, port))
            taken.listen()

        monkeypatch.setattr(cli_up, "check_address", then_taken)
        with pytest.raises(AddressInUse):
            asyncio.run(cli_up._serve(options, lambda: None))
    assert (data / "toque.json").exists()
    assert not (data / MARK).exists(), "nobody has seen the token"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--data", "data", "--host", "nowhere"), "no IP address"),
        (("--data", "foreign"), "is no data directory"),
        ((), "--data DIR"),
        (("--data", "data", "--port", "4711", "--metrics-port", "4711"), "give metrics another"),
        (("none.py", "--data", "data"), "no such file"),
        (("--data", "data", "--first-token-file", "none/x"), "there is no folder none"),
        (("--data", "data", "--ray-address", "auto"), "leave --ray-address or --embedded out"),
    ],
    ids=["host", "foreign", "data", "ports", "file", "token", "ray"],
)
def test_a_wrong_setting_is_told_in_a_sentence_with_exit_code_2(
    tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    code, error = fails(tmp_path, "--embedded", "--port", "0", *words)
    assert (code, told in error, len(error.splitlines())) == (2, True, 1), error


def test_a_manager_learns_whether_starting_again_can_help() -> None:
    for error in (InvalidArgument("x"), DataDirFormat("x"), WorkflowLoadError("x")):
        assert start_code(error) == 2
    for passing in (AddressInUse("x"), DataDirInUse("x"), StoreFailed("x")):
        assert start_code(passing) == 1


def test_addresses_that_others_reach_are_the_callers_decision(tmp_path: Path) -> None:
    async def main() -> None:
        async with embedded(tmp_path / "data") as runtime:
            app = make_app(runtime.control_plane, tokens=TokenBook({}), version="test")
            with pytest.raises(InvalidArgument, match="no loopback address"):
                HttpServer(app, SystemClock(), "0.0.0.0")
            HttpServer(app, SystemClock(), "0.0.0.0", loopback_only=False)  # not started
            with pytest.raises(InvalidArgument, match="no IP address"):
                HttpServer(app, SystemClock(), "example", loopback_only=False)

    asyncio.run(main())


def test_without_a_manager_nothing_is_told_and_one_that_is_gone_harms_nobody(
    tmp_path: Path,
) -> None:
    for env in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"WATCHDOG_USEC": "x"}):
        notifier = Notifier(env)
        notifier.ready("fine")
        notifier.stopping("fine")
        notifier.close()


def test_an_abstract_address_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # the system chooses an abstract name
        name = manager.getsockname().decode()
        manager.settimeout(10)
        Notifier({"NOTIFY_SOCKET": "@" + name[1:]}).ready("fine")
        assert manager.recv(100) == b"READY=1\nSTATUS=fine"


def test_a_log_line_is_one_json_object_whatever_it_says() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord("toque.x", logging.ERROR, "f", 1, "a %s\n\"b\"", ("ä",), (
            type(error), error, error.__traceback__
        ))  # fmt: skip
    (line,) = JsonLines().format(record).splitlines()
    told = json.loads(line)
    assert (told["level"], told["message"]) == ("error", 'a ä\n"b"')
    assert "two\nlines" in told["error"]
