"""Chaos kills only what is under load: the server at the url, if it runs on the data directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toque.actors.keeper import Process, boot_id, identify, write_run
from toque.loadtest import chaos
from toque.loadtest.chaos import check_killable
from toque.loadtest.whose import check_serves, is_here
from toque.runtime.errors import InvalidArgument

LISTENER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listening() -> Iterator[tuple[Process, int]]:
    """A process that listens on a port until the end."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = identify(process.pid)
        assert found is not None
        yield found, port
        process.communicate()


def runs_on(folder: Path, starter: Process) -> None:
    write_run(str(folder / "run.json"), {"boot": boot_id(), "starter": list(starter)})


def test_the_server_under_load_is_told_from_another(tmp_path: Path) -> None:
    with listening() as (mine, port), listening() as (_, other):
        runs_on(tmp_path, mine)
        for host in ("127.0.0.1", "localhost"):
            check_serves(tmp_path, f"http://{host}:{port}")
            with pytest.raises(InvalidArgument, match="is not the one that runs on"):
                check_serves(tmp_path, f"http://{host}:{other}")
        with pytest.raises(InvalidArgument, match="may be another"):
            check_serves(tmp_path, f"http://toque.example:{port}")
        with pytest.raises(InvalidArgument, match="may be another"):
            check_serves(tmp_path, None)
    with pytest.raises(InvalidArgument, match="no server runs on"):
        check_serves(tmp_path, f"http://127.0.0.1:{port}")


def test_a_port_where_nobody_listens_is_no_server_of_the_directory(tmp_path: Path) -> None:
    with listening() as (_, free):
        pass
    me = identify(os.getpid())
    assert me is not None
    runs_on(tmp_path, me)
    with pytest.raises(InvalidArgument, match="not the one"):
        check_serves(tmp_path, f"http://127.0.0.1:{free}")


def test_a_server_that_is_not_under_load_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as (mine, _), listening() as (_, other):
        runs_on(tmp_path, mine)
        monkeypatch.setattr(chaos, "owners", lambda data: {"d0": mine})
        with pytest.raises(InvalidArgument, match=re.escape(f"runs on {tmp_path}")):
            check_killable(tmp_path, f"http://127.0.0.1:{other}")


def test_only_names_of_this_machine_are_here() -> None:
    assert all(map(is_here, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_here, ("", "10.0.0.1", "localhost.example", "0.0.0.0")))
