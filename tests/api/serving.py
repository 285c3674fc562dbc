"""`toque up` as a process: started, asked, ended in order; used by the tests of what runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Served:
    """A server that runs: what it told."""

    def __init__(self, told: dict[str, Any], process: subprocess.Popen[str]) -> None:
        self.told = told
        self._process = process
        self._stopped = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def stop(self) -> None:
        """Send SIGTERM, once."""
        if not self._stopped:
            self._stopped = True
            self._process.send_signal(signal.SIGTERM)

    def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        """Status and JSON (or text) of a GET."""
        return get(self.told["url"] + path, token)


def get(url: str, token: str | None = None) -> tuple[int, Any]:
    """Status and JSON (or text) of a GET."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, error.read()
    try:
        return status, json.loads(body)
    except ValueError:
        return status, body.decode()


def environment(**more: str) -> dict[str, str]:
    """The environment without settings of toque or of a service manager."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TOQUE_", "NOTIFY_"))}
    return {**kept, **more}


@contextmanager
def up(
    folder: Path,
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> Iterator[Served]:
    """`toque up` with some words; at the end SIGTERM, and it must end in order.

    Args:
        folder: where it runs.
        words: its arguments.
        env: more variables.
        command: runs it, if given: the words before it.
    """
    log = folder / "log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*command, sys.executable, "-m", "toque.api.cli", "up", *words, "--json"],
            cwd=folder, env=environment(**(env or {})),
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    text = ""
    try:
        assert process.stdout is not None
        while line := process.stdout.readline():
            text += line
            if line == "}\n":
                break
        assert text, log.read_text()
        served = Served(json.loads(text), process)
        yield served
        served.stop()
        process.wait(60)
        assert (process.returncode, "Traceback" in log.read_text()) == (0, False), log.read_text()
    finally:
        process.kill()
        process.communicate()


def fails(folder: Path, *words: str, command: Sequence[str] = ()) -> tuple[int, str]:
    """`toque up` that ends by itself: its exit code and what it told."""
    done = subprocess.run(
        [*command, sys.executable, "-m", "toque.api.cli", "up", *words],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stderr
