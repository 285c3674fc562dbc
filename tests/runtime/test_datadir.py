"""The data directory: made once, opened by one, refused if it is anything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toque.runtime import datadir, files
from toque.runtime.datadir import DIR_FORMAT, DataDir
from toque.runtime.errors import DataDirFormat, DataDirInUse, InvalidArgument

HOLDER = """
import sys
from toque.runtime.datadir import DIR_FORMAT, DataDir
held = DataDir.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def contents(path: Path) -> set[str]:
    return set(os.listdir(path))


def test_a_new_directory_is_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    made = DataDir.open(path, data_shards=3, control_shards=2, created_ms=5)
    assert made.created
    assert json.loads((path / "toque.json").read_text()) == {
        "format": DIR_FORMAT,
        "data_shards": 3,
        "control_shards": 2,
        "created_ms": 5,
        "stores_made": False,
    }
    assert contents(path) == {"toque.json", "lock", "shards"}
    assert path.stat().st_mode & 0o777 == 0o700
    assert made.placement.names() == ["c0", "c1", "d0", "d1", "d2"]
    assert made.store_path("d2") == path / "shards" / "d2.sqlite"
    assert made.store_path("d2").parent.is_dir()
    made.close()
    made.close()


def test_shard_counts_are_read_back(tmp_path: Path) -> None:
    DataDir.open(tmp_path, data_shards=3).close()
    for options in ({}, {"data_shards": 3}, {"data_shards": 3, "control_shards": 1}):
        again = DataDir.open(tmp_path, **options)
        assert not again.created
        assert (again.settings.data_shards, again.settings.control_shards) == (3, 1)
        again.close()
    for options in ({"data_shards": 4}, {"control_shards": 2}):
        with pytest.raises(InvalidArgument, match="can't be changed"):
            DataDir.open(tmp_path, **options)
    DataDir.open(tmp_path).close()  # a refusal holds no lock


@pytest.mark.parametrize(
    "options",
    [{"data_shards": 0}, {"control_shards": -1}, {"data_shards": 10_000}],
)
def test_impossible_counts_make_nothing(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        DataDir.open(tmp_path / "data", **options)
    assert contents(tmp_path) == set()


def test_a_second_opener_in_this_process_is_refused(tmp_path: Path) -> None:
    held = DataDir.open(tmp_path)
    with pytest.raises(DataDirInUse, match="this process"):
        DataDir.open(tmp_path)
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    with pytest.raises(DataDirInUse):
        DataDir.open(link)
    held.close()
    DataDir.open(link).close()


def test_another_process_is_named_and_its_death_frees(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(DataDirInUse, match=f"process {holder.pid}"):
            DataDir.open(tmp_path)
        holder.kill()
        holder.wait()
        DataDir.open(tmp_path).close()


def test_what_is_no_data_directory_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(DataDirFormat, match=r"thesis\.txt"):
        DataDir.open(tmp_path)
    assert contents(tmp_path) == {"thesis.txt"}
    with pytest.raises(DataDirFormat):
        DataDir.open(tmp_path / "thesis.txt")
    with pytest.raises(DataDirFormat):
        DataDir.open(tmp_path / "thesis.txt" / "data")
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (
            {"format": DIR_FORMAT + 1, "shards": "of another kind"},
            f"format {DIR_FORMAT + 1}.*wrote",
        ),
        ({"format": 1, "data_shards": 1, "control_shards": 1}, "format 1.*upgraded"),
        ({"format": 0}, "format 0"),
        ({"format": "1"}, "damaged"),
        ({"format": DIR_FORMAT, "data_shards": 1}, "damaged"),
        ({"format": DIR_FORMAT, "data_shards": 0, "control_shards": 1}, "damaged"),
        ({}, "damaged"),
        ([], "damaged"),
    ],
)
def test_other_formats_are_refused(tmp_path: Path, content: Any, match: str) -> None:
    settings = tmp_path / "toque.json"
    settings.write_text(json.dumps(content))
    with pytest.raises(DataDirFormat, match=match):
        DataDir.open(tmp_path)
    assert json.loads(settings.read_text()) == content
    settings.write_text("{half a fi")
    with pytest.raises(DataDirFormat, match="damaged"):
        DataDir.open(tmp_path)


def test_a_crash_while_it_is_made_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "shards").mkdir()
    (tmp_path / "toque.json.tmp").write_text("{half")
    made = DataDir.open(tmp_path, data_shards=2)
    assert made.created
    assert made.settings.data_shards == 2
    made.close()


def test_a_store_that_was_made_once_and_is_missing_is_refused(tmp_path: Path) -> None:
    made = DataDir.open(tmp_path)
    datadir.check_store(made.path, "d0")  # it is just being made
    made.store_path("d0").write_bytes(b"rows")
    made.note_stores_made()
    made.close()
    again = DataDir.open(tmp_path)
    again.note_stores_made()
    again.close()
    datadir.check_store(made.path, "d0")
    with pytest.raises(DataDirFormat, match=r"c0\.sqlite is missing"):
        datadir.check_store(made.path, "c0")
    made.store_path("d0").write_bytes(b"")
    with pytest.raises(DataDirFormat, match=r"d0\.sqlite is empty"):
        datadir.check_store(made.path, "d0")


@pytest.mark.parametrize("name", ["", "d", "x0", "d0/../c0", "../d0", "d0.sqlite", "D0", "d-1"])
def test_a_shard_name_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument):
        datadir.store_path(tmp_path, name)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    files.write_atomically(target, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            files.write_atomically(target, b"new")
        with pytest.raises(DataDirFormat, match="can't be used"):
            DataDir.open(tmp_path / "data")
    assert target.read_bytes() == b"old"
    files.write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o600
