"""`toque config set` and `unset`: what is changed, what stays, and who may read it."""

from __future__ import annotations

import json
import stat
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toque.api import cli_exits
from toque.api.cli import app
from toque.api.settings import SETTINGS
from toque.api.settings_file import set_value, unset_value
from toque.runtime.errors import InvalidArgument
from toque.runtime.files import write_atomically

PROFILES = """\
# mine
profile = "shop"  # the usual one

[profiles.shop]
url = "https://shop.example"  # behind the proxy
account = "shop"

# for trying things
[profiles.lab]
url = "https://lab.example"
"""


class Mine:
    """A person's own file, and the command line that changes it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "own" / "config.toml"

    def __call__(self, *words: str, **more: Any) -> Any:
        env = {"TOQUE_CONFIG": str(self.file), "COLUMNS": "200", **more.pop("env", {})}
        return CliRunner().invoke(app, ["config", *words], env=env, **more)

    def put(self, text: str, mode: int = 0o600) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(text)
        self.file.chmod(mode)

    def read(self) -> Any:
        return tomllib.loads(self.file.read_text())

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self.file.stat().st_mode)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mine:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Mine(tmp_path)


def test_the_first_setting_makes_a_file_and_a_profile_that_is_used(mine: Mine) -> None:
    done = mine("set", "url", "https://a.example/")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == (
        f"url is https://a.example in profile 'default' of {mine.file}.\n"
        "Commands use profile 'default' from now on.\n"
    )
    assert mine.read() == {
        "profile": "default",
        "profiles": {"default": {"url": "https://a.example"}},
    }
    assert (mine.mode, stat.S_IMODE(mine.file.parent.stat().st_mode)) == (0o600, 0o700)
    shown = json.loads(mine("show", "-o", "json").stdout)
    assert shown["url"] == {
        "value": "https://a.example",
        "from": f"profile 'default' of {mine.file}",
    }
    again = mine("set", "url", "https://b.example")
    assert again.stdout == (
        f"url is https://b.example in profile 'default' of {mine.file} (it was "
        "https://a.example).\n"
    )


def test_comments_order_and_the_rest_stay(mine: Mine) -> None:
    mine.put(PROFILES, 0o644)
    assert mine("set", "timeout", "30s").exit_code == 0
    assert mine("set", "account", "store", "--profile", "lab").exit_code == 0
    assert mine("set", "profile", "lab").exit_code == 0
    assert mine("unset", "account", "--profile", "shop").exit_code == 0
    text = mine.file.read_text()
    for comment in ("# mine", "# the usual one", "# behind the proxy", "# for trying things"):
        assert comment in text
    assert mine.read() == {
        "profile": "lab",
        "profiles": {
            "shop": {"url": "https://shop.example", "timeout": "30s"},
            "lab": {"url": "https://lab.example", "account": "store"},
        },
    }
    assert mine.mode == 0o644, "no token, no change of who may read it"


def test_a_token_is_read_from_stdin_shown_by_its_id_and_the_owners_only(mine: Mine) -> None:
    mine.put(PROFILES, 0o644)
    done = mine("set", "token", "-", input="tq_shop00000000_secret\n")
    assert (done.exit_code, "secret" in done.stdout + done.stderr) == (0, False)
    assert done.stdout.startswith("token is tq_shop00000000_... in profile 'shop'")
    assert mine.read()["profiles"]["shop"]["token"] == "tq_shop00000000_secret"
    assert mine.mode == 0o600
    mine.file.chmod(0o640)
    told = mine("set", "output", "ids", "-o", "json")
    assert "secret" not in told.stdout
    assert mine.mode == 0o600, "each change sees to it"


def test_what_a_crash_left_is_no_open_door(tmp_path: Path) -> None:
    left = tmp_path / "config.toml.tmp"
    left.write_text("")
    left.chmod(0o666)
    write_atomically(tmp_path / "config.toml", b"token", 0o600)
    assert stat.S_IMODE((tmp_path / "config.toml").stat().st_mode) == 0o600


def test_a_link_to_the_file_stays_a_link(mine: Mine, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text(PROFILES)
    mine.file.parent.mkdir()
    mine.file.symlink_to(real)
    assert mine("set", "output", "json").exit_code == 0
    assert mine.file.is_symlink()
    assert 'output = "json"' in real.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["set", "ulr", "x"], "Did you mean 'url'?"),
        (["set", "url", "shop.example"], "it must start with http:// or https://"),
        (["set", "output", "yaml"], "it must be one of table, json, ids"),
        (["set", "account", "a b"], "account id 'a b' is not valid"),
        (["set", "timeout", "soon"], "timeout is 'soon'"),
        (["set", "url", ""], "it must be a text"),
        (["set", "token", "a b", "--profile", "lab"], "visible ASCII"),
        (["set", "token", "tq_a_b", "--profile", "new"], "no url to send it to"),
        (["set", "profile", "new"], "there is no profile 'new'"),
        (["set", "output", "ids", "--profile", "a b"], "profile 'a b' is no name"),
        (["unset", "timeout"], "has no timeout"),
        (["unset", "tokne"], "Did you mean 'token'?"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_is_not_as_it_must_be_is_refused_and_changes_nothing(
    mine: Mine, words: list[str], told: str
) -> None:
    mine.put(PROFILES)
    done = mine(*words)
    assert (done.exit_code, told in done.stderr) == (cli_exits.USAGE, True), done.stderr
    assert mine.file.read_text() == PROFILES


@pytest.mark.parametrize("text", ["profile =", "[profils.x]\n", "profiles = 5\n"])
def test_a_file_that_is_not_in_order_is_left_alone(mine: Mine, text: str) -> None:
    mine.put(text)
    assert mine("set", "output", "ids").exit_code == cli_exits.USAGE
    assert mine.file.read_text() == text


def test_a_url_stays_while_a_token_stands_beside_it(mine: Mine) -> None:
    mine.put(PROFILES)
    mine("set", "token", "tq_a_b")
    done = mine("unset", "url")
    assert (done.exit_code, "no url to send it to" in done.stderr) == (cli_exits.USAGE, True)
    done = mine("unset", "token")
    assert done.stdout.startswith("token is not set any more in profile 'shop'")
    assert mine("unset", "url").exit_code == 0


def test_what_wins_over_a_new_value_is_told(mine: Mine) -> None:
    mine.put(PROFILES)
    done = mine("set", "account", "mine", env={"TOQUE_ACCOUNT": "other"})
    assert done.stdout.endswith("It is not in effect: TOQUE_ACCOUNT has other.\n")
    assert "not in effect" not in mine("set", "account", "mine").stdout


def test_a_relative_data_directory_is_meant_from_here(mine: Mine) -> None:
    mine.put(PROFILES)
    mine("set", "data", "data/dev")
    assert mine.read()["profiles"]["shop"]["data"] == str(Path.cwd() / "data" / "dev")


def test_every_setting_can_be_set_and_taken_out(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    values = {name: setting.right for name, setting in SETTINGS.items() if name != "profile"}
    for name, value in values.items():
        assert set_value(file, "one", name, value).now is not None
    assert set(tomllib.loads(file.read_text())["profiles"]["one"]) == set(values)
    for name in reversed(values):
        unset_value(file, "one", name)
    assert tomllib.loads(file.read_text())["profiles"]["one"] == {}
    with pytest.raises(InvalidArgument, match="has no url"):
        unset_value(file, "one", "url")


def test_two_who_change_it_at_a_time_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: set_value(file, f"p{n}", "url", f"http://h{n}"), range(40)))
    assert len(tomllib.loads(file.read_text())["profiles"]) == 40
