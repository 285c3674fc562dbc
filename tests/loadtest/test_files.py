"""The files of a test: tried before it, and one that fails at its end loses nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loadtest import made
from toque.api.cli_flags import Flags
from toque.loadtest import execute
from toque.loadtest.command import Request
from toque.loadtest.execute import check_files
from toque.loadtest.result import Result, read_result
from toque.runtime.errors import InvalidArgument


def asked(out: Path | None, html: Path | None = None) -> Request:
    return Request(Flags(), "steady", {}, False, False, True, None, out, html, True)


def test_files_are_tried_and_left_as_they_were(tmp_path: Path) -> None:
    out, html = tmp_path / "r.json", tmp_path / "r.html"
    html.write_text("an older one")
    check_files(out, html)
    assert [each.name for each in tmp_path.iterdir()] == ["r.html"]
    assert html.read_text() == "an older one"


@pytest.mark.parametrize("way", ["folder", "long", "long by a little", "file for a folder"])
def test_what_can_not_be_written_is_refused_before_the_test(tmp_path: Path, way: str) -> None:
    (tmp_path / "file").touch()
    path = {
        "folder": tmp_path,
        "long": tmp_path / ("r" * 300),
        "long by a little": tmp_path / ("r" * 253),
        "file for a folder": tmp_path / "file" / "r.json",
    }[way]
    for out, html in ((path, None), (None, path)):
        with pytest.raises(InvalidArgument, match=r"can't be written|there is no folder"):
            check_files(out, html)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_one_file_for_both_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="name two files"):
        check_files(tmp_path / "r", tmp_path / "x" / ".." / "r")


@pytest.mark.parametrize("lost", ["out", "html"])
def test_a_file_that_fails_at_the_end_loses_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    out, html = tmp_path / "r.json", tmp_path / "r.html"
    (out if lost == "out" else html).mkdir()
    with pytest.raises(InvalidArgument, match="can't be written"):
        execute.told(asked(out, html), made.example())
    assert "offered" in capsys.readouterr().out
    if lost == "out":
        assert "<html" in html.read_text()
    else:
        assert isinstance(read_result(out), Result)
