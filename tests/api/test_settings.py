"""Settings: which place wins, where each value comes from, and what no file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toque.api.cli import app
from toque.api.cli_config import (
    DATA_DEFAULT,
    DevFile,
    find_settings,
    read_dev_file,
    write_dev_file,
)
from toque.api.settings import SETTINGS, hidden
from toque.runtime.errors import InvalidArgument

PROFILES = """
profile = "shop"

[profiles.shop]
url = "https://shop.example/"
token = "tq_shop00000000_secret"
account = "shop"

[profiles.lab]
url = "https://lab.example"
output = "ids"
"""


class Folder:
    """A directory to run in, and a person's own file."""

    def __init__(self, root: Path) -> None:
        self.here = root / "work" / "inner"
        self.here.mkdir(parents=True)
        self.config = root / "config.toml"
        self.env = {"TOQUE_CONFIG": str(self.config)}

    def find(self, flags: dict[str, Any] | None = None, **env: str) -> dict[str, tuple[Any, str]]:
        found = find_settings(flags or {}, {**self.env, **env}, self.here).found
        return {name: tuple(each) for name, each in found.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_with_nothing_there_are_defaults(folder: Folder) -> None:
    found = folder.find()
    assert found["url"] == (None, "default")
    assert found["account"] == ("default", "default")
    assert set(found) == set(SETTINGS)
    with pytest.raises(InvalidArgument, match="toque dev"):
        _ = find_settings({}, folder.env, folder.here).url


def test_the_nearer_place_wins(folder: Folder) -> None:
    data = folder.here / DATA_DEFAULT
    data.mkdir(parents=True)
    write_dev_file(data, DevFile("http://dev.example", "dev-token", "devs"))
    assert folder.find()["url"] == ("http://dev.example", ".toque/dev/dev.json")
    assert folder.find()["account"] == ("devs", ".toque/dev/dev.json")
    folder.config.write_text(PROFILES)
    own = f"profile 'shop' of {folder.config}"
    assert folder.find()["url"] == ("https://shop.example", own)
    assert folder.find()["profile"] == ("shop", str(folder.config))
    assert folder.find({"profile": "lab"})["output"] == ("ids", f"profile 'lab' of {folder.config}")
    project = folder.here.parent / "pyproject.toml"
    project.write_text('[tool.toque]\naccount = "ours"\ndata = "here"\n')
    assert folder.find()["account"] == ("ours", str(project))
    assert folder.find()["data"][0] == str(folder.here.parent / "here")
    (folder.here / "toque.toml").write_text('account = "nearest"\n')
    assert folder.find()["account"] == ("nearest", "toque.toml")
    assert folder.find(TOQUE_ACCOUNT="env")["account"] == ("env", "TOQUE_ACCOUNT")
    flags = {"account": "flag", "url": None}
    assert folder.find(flags, TOQUE_ACCOUNT="env")["account"] == ("flag", "--account")


def test_a_token_goes_to_its_own_url_only(folder: Folder) -> None:
    folder.config.write_text(PROFILES)
    data = folder.here / DATA_DEFAULT
    data.mkdir(parents=True)
    write_dev_file(data, DevFile("http://dev.example", "dev-token"))
    assert folder.find()["token"][0] == "tq_shop00000000_secret"
    (folder.here / "toque.toml").write_text('url = "https://other.example"\n')
    assert folder.find()["token"] == (None, "default")
    assert folder.find(TOQUE_TOKEN="mine")["token"] == ("mine", "TOQUE_TOKEN")
    assert folder.find({"url": "http://dev.example"})["token"][0] == "dev-token"
    assert folder.find({"url": "https://shop.example/"})["token"][0] == "tq_shop00000000_secret"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("toque.toml", 'ulr = "x"', r"'ulr' is not known\. Did you mean 'url'\?"),
        ("toque.toml", 'token = "x"', "a token does not belong in a project's file"),
        ("toque.toml", 'output = "yaml"', r"toque.toml: output is 'yaml', but it must be one of"),
        ("toque.toml", "account = 5.5", "account is 5.5, but account id '5.5' is not valid"),
        ("toque.toml", "account = []", r"account is \[\], but it must be a text"),
        ("toque.toml", "account =", "is no TOML"),
        ("pyproject.toml", "[tool]\ntoque = 5", "must be a table"),
        ("pyproject.toml", '[tool.toque]\nretry_for = "soon"', "retry_for is 'soon', but it"),
        ("../../config.toml", "[profile.x]", "profile is .*but it must be a text"),
        ("../../config.toml", "[profils.x]", "Did you mean 'profiles'"),
        ("../../config.toml", "profiles = 5", "profiles are tables"),
        ("../../config.toml", '[profiles.x]\nacount = "a"', "Did you mean 'account'"),
        ("../../config.toml", '[profiles.x]\ntoken = "a"', "no url to send it to"),
        ("../../config.toml", 'profile = "y"\n[profiles.x]\nurl = "http://a"', "no profile 'y'"),
    ],
)
def test_what_is_wrong_in_a_file_is_told(folder: Folder, name: str, text: str, told: str) -> None:
    (folder.here / name).write_text(text)
    with pytest.raises(InvalidArgument, match=told):
        folder.find()


def test_a_project_file_without_settings_of_toque_is_none(folder: Folder) -> None:
    (folder.here / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (folder.here.parent / "toque.toml").write_text('account = "above"\n')
    assert folder.find()["account"][0] == "above"


def test_show_tells_where_each_comes_from_and_hides_the_token(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.here)
    folder.config.write_text(PROFILES)
    for words in ([], ["-o", "json"], ["-o", "ids"]):
        shown = CliRunner().invoke(app, ["config", "show", *words], env=folder.env)
        assert shown.exit_code == 0, shown.stderr
        assert "secret" not in shown.stdout
    shown = CliRunner().invoke(app, ["config", "show", "-o", "json"], env=folder.env)
    assert json.loads(shown.stdout)["token"]["value"] == "tq_shop00000000_..."
    lost = CliRunner().invoke(app, ["config", "show", "--profile", "nobody"], env=folder.env)
    assert (lost.exit_code, "has: shop, lab" in lost.stderr) == (2, True)
    paths = CliRunner().invoke(app, ["config", "path", "-o", "json"], env=folder.env)
    assert json.loads(paths.stdout)["config"] == str(folder.config)


@pytest.mark.parametrize("token", ["tq_abc_def", "0123456789abcdef", "short", "a_b_c"])
def test_a_token_is_never_shown_whole(token: str) -> None:
    assert token not in hidden(token)
    assert len(hidden(token)) < len(token) + 3


def test_the_dev_file_is_private(tmp_path: Path) -> None:
    path = write_dev_file(tmp_path, DevFile("http://127.0.0.1:1", "secret"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_dev_file(tmp_path) == DevFile("http://127.0.0.1:1", "secret")
    path.write_text("{")
    assert read_dev_file(tmp_path) is None
