"""`toque dev` on Ray outlives Ray's own processes, and its log stays readable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from toque.actors import keeper

pytestmark = [pytest.mark.cluster]
APP = """
import toque

@toque.workflow
async def hello(event, step):
    return await step.do("greet", lambda: f"hello {event.payload}")
"""


def toque(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TOQUE_")}
    return subprocess.run(
        [sys.executable, "-m", "toque.api.cli", *words],
        cwd=folder, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_killed_raylet_is_replaced_and_told_of_in_sentences(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-m", "toque.api.cli", "dev", "app.py", "--port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    told: list[str] = []
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "toque serves hello" in process.stdout.readline()
        commands = {pid: keeper.command(pid) for pid in keeper.children(process.pid)}
        (raylet,) = (pid for pid, line in commands.items() if "raylet/raylet" in line)
        os.kill(raylet, signal.SIGKILL)
        for line in process.stderr:
            told.append(line)
            if "ray back" in line:
                break
        assert process.poll() is None, told
        made = toque(tmp_path, "create", "hello", "--params", '"you"', "--wait", "--json")
        assert made.returncode == 0, made.stderr
    finally:
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    log = "".join(told) + rest
    assert "ray lost" in log
    assert "state-dump" not in log
    assert "Traceback" not in log
    assert all(line[:4].isdigit() for line in log.splitlines()), log


APP_OF_FILES = """
import toque
from helpers import greet

@toque.workflow
async def hello(event, step):
    near = await step.do("near", lambda: greet(event.payload))

    @step.do("far", ray_options={"num_cpus": 0.01})
    def far():
        return greet(event.payload)

    return [near, await far()]


class Apart(toque.WorkflowEntrypoint):
    placement = "actor"

    async def run(self, event, step):
        from helpers import greet as late
        return await step.do("greet", lambda: late(event.payload))
"""


def test_an_app_imports_what_stands_beside_it(tmp_path: Path) -> None:
    """In the server, in shards, in a worker of its own, and in a body that runs as a Ray task."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "app.py").write_text(APP_OF_FILES)
    (folder / "helpers.py").write_text("def greet(who):\n    return f'hello {who}'\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "toque.api.cli", "dev", "shop", "--port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert "toque serves hello, Apart" in process.stdout.readline()
        for name, output in (("hello", ["hello you"] * 2), ("Apart", "hello you")):
            made = toque(tmp_path, "create", name, "--params", '"you"', "--wait", "--json")
            assert made.returncode == 0, made.stderr + made.stdout
            assert json.loads(made.stdout)["output"] == output
    finally:
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, rest
