"""`toque dev` as a process: it serves, it is found, it ends in order, it tells what is wrong."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api.serving import get
from toque.api import cli_exits
from toque.api.cli_config import DATA_DEFAULT
from toque.runtime.datadir import DIR_FORMAT

APP = """
import toque

@toque.workflow
async def hello(event, step):
    return await step.do("greet", lambda: f"hello {event.payload}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def toque(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TOQUE_")}
    return subprocess.run(
        [sys.executable, "-m", "toque.api.cli", *words],
        cwd=folder, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@contextmanager
def serving(folder: Path, path: Path | str = "app.py") -> Iterator[dict[str, str]]:
    """`toque dev --embedded` in a folder; gives what it told, and checks that it ends in order."""
    process = subprocess.Popen(
        [sys.executable, "-m", "toque.api.cli", "dev", str(path), "--embedded", "--port", "0",
         "--json"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    told = ""
    try:
        assert process.stdout is not None
        while line := process.stdout.readline():
            told += line
            if line == "}\n":
                break
        yield json.loads(told)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in errors) == (0, False), errors


def test_it_serves_until_it_is_told_to_stop(folder: Path) -> None:
    with serving(folder) as told:
        assert told["workflows"] == ["hello"]
        assert told["dashboard_url"] == f"{told['url']}/dashboard/"
        status, page = get(told["dashboard_url"])
        assert (status, "<title>toque</title>" in page) == (200, True)
        made = toque(
            folder, "create", "hello", "--id", "a/1", "--params", '"you"', "--wait", "--json"
        )
        assert (made.returncode, json.loads(made.stdout)["output"]) == (0, "hello you"), made.stderr
        second = toque(folder, "dev", "app.py", "--embedded", "--port", "0")
        assert second.returncode == 1
        assert "in use" in second.stderr
        port = told["url"].rpartition(":")[2]
        busy = toque(folder, "dev", "app.py", "--embedded", "--port", port, "--data", "other")
        assert busy.returncode == 1
        assert f"port {port} is in use" in busy.stderr
        assert not (folder / "other").exists()
        before = json.loads((folder / DATA_DEFAULT / "dev.json").read_text())["token"]
    with serving(folder):  # the same data, the same token
        shown = toque(folder, "instances", "describe", "hello", "a/1", "--json")
        assert json.loads(shown.stdout)["output"] == "hello you"
        assert json.loads((folder / DATA_DEFAULT / "dev.json").read_text())["token"] == before
    gone = toque(folder, "workflows", "list")
    assert gone.returncode == 7
    assert "'toque dev' of .toque/dev does not run any more" in gone.stderr
    looked = toque(folder, "doctor")
    assert (looked.returncode, looked.stdout) == (0, "Nothing is wrong.\n"), looked.stderr
    assert "no server has" in looked.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no such file"),
        ("import nothing_like_it", "app.py"),
        ("def broken(:\n", "line 1"),
        ("x = 1\n", "defines no workflow"),
    ],
)
def test_an_app_that_does_not_load_is_told_in_a_sentence(
    folder: Path, text: str | None, told: str
) -> None:
    if text is None:
        (folder / "app.py").unlink()
    else:
        (folder / "app.py").write_text(text)
    found = toque(folder, "dev", "app.py", "--embedded", "--port", "0")
    assert found.returncode == cli_exits.USAGE
    assert found.stderr.startswith("toque: ")
    assert told in found.stderr
    assert "app.py" in found.stderr
    assert "Traceback" not in found.stderr


def test_what_the_readme_tells_to_run_works_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("# One\n")
    examples = Path(__file__).parents[2] / "examples"
    for words in (
        ["run_docs.py", "--embedded"],
        ["hello.py"],
        ["approval.py"],
        ["durable_object.py"],
    ):
        done = subprocess.run(
            [sys.executable, str(examples / words[0]), *words[1:]],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    with serving(tmp_path, examples / "hello.py") as told:
        assert told["workflows"] == ["Hello"]
        made = toque(tmp_path, "create", "Hello", "--params", '"ada"', "--wait")
        assert made.returncode == 0, made.stderr
    with serving(tmp_path, examples / "approval.py") as told:
        assert told["workflows"] == ["Purchase"]


BESIDE = """
import toque
from helpers import greet

@toque.workflow
async def hello(event, step):
    return await step.do("greet", lambda: greet(event.payload))

class Apart(toque.WorkflowEntrypoint):
    placement = "actor"

    async def run(self, event, step):
        from lazy import greet_late
        return await step.do("greet", lambda: greet_late(event.payload))
"""


def make_app_of_files(folder: Path) -> None:
    """An app that imports what stands beside it, at its top and late."""
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(BESIDE)
    (folder / "helpers.py").write_text("def greet(who):\n    return f'hello {who}'\n")
    (folder / "lazy.py").write_text("from helpers import greet as greet_late\n")


@pytest.mark.parametrize("path", ["shop/app.py", "shop"])
def test_an_app_imports_what_stands_beside_it(tmp_path: Path, path: str) -> None:
    make_app_of_files(tmp_path / "shop")
    with serving(tmp_path, path) as told:
        assert told["workflows"] == ["hello", "Apart"]
        for name in told["workflows"]:
            made = toque(tmp_path, "create", name, "--params", '"you"', "--wait", "--json")
            assert made.returncode == 0, made.stderr + made.stdout
            assert json.loads(made.stdout)["output"] == "hello you"


def test_a_folder_whose_app_can_not_be_told_is_refused(tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(APP)
    found = toque(tmp_path, "dev", ".", "--embedded", "--port", "0")
    assert found.returncode == cli_exits.USAGE
    assert "one.py, two.py" in found.stderr
    assert not (tmp_path / DATA_DEFAULT).exists()


WAITS = """
import toque

@toque.workflow
async def waits(event, step):
    await step.wait_for_event("go", "go")
"""


@pytest.mark.parametrize("words", [["create", "waits", "--wait"], ["instances", "wait"]])
def test_who_stops_waiting_is_told_what_goes_on(folder: Path, words: list[str]) -> None:
    (folder / "app.py").write_text(WAITS)
    with serving(folder):
        if words[0] == "instances":
            toque(folder, "create", "waits", "--id", "z")
            words = [*words, "waits", "z"]
        process = subprocess.Popen(
            [sys.executable, "-m", "toque.api.cli", *words],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            listed = ""
            while not listed:
                listed = toque(
                    folder, "instances", "list", "waits", "-o", "ids", "--status", "waiting"
                ).stdout
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
        assert process.returncode == cli_exits.INTERRUPTED
        if words[0] == "create":
            assert f"'toque instances wait waits {listed.strip()}'" in errors


SLOW = """
import time
import toque

@toque.workflow
async def hello(event, step):
    return 1

print("importing", flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_the_file_imports(folder: Path, number: signal.Signals) -> None:
    (folder / "app.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "toque.api.cli", "dev", "app.py", "--embedded", "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in errors) == (130, False), errors


def test_the_hint_works_as_it_is_printed(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "toque.api.cli", "dev", "app.py", "--embedded", "--port", "0",
         "--data", "some where"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().partition(" at ")[2].partition(" ")[0]
        assert process.stdout.readline() == f"Dashboard: {url}/dashboard/\n"
        hint = process.stdout.readline().removeprefix("Try: toque ").partition("    ")[0]
        made = toque(folder, *shlex.split(hint))
        assert made.returncode == 0, made.stderr
        assert "hello None" in made.stdout
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def test_a_newer_data_directory_is_left_alone(folder: Path) -> None:
    (folder / "data").mkdir()
    settings = folder / "data" / "toque.json"
    settings.write_text(json.dumps({"format": DIR_FORMAT + 1}))
    found = toque(folder, "dev", "app.py", "--embedded", "--port", "0", "--data", "data")
    assert found.returncode == cli_exits.USAGE
    assert "format" in found.stderr
    assert "Traceback" not in found.stderr
    assert json.loads(settings.read_text()) == {"format": DIR_FORMAT + 1}
