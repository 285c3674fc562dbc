"""Where the command line finds its settings: what `settings` resolves is read here.

A project's settings stand in `toque.toml`, or in `pyproject.toml` under `[tool.toque]`, in this
directory or the nearest above; a person's own profiles in `~/.config/toque/config.toml`
(`XDG_CONFIG_HOME` and `TOQUE_CONFIG` move it).

`toque dev` writes `dev.json` into its data directory, `./.toque/dev` if it is not told otherwise;
other programs keep theirs beside it, under `./.toque`. The file is readable by its owner only;
its token is kept over restarts.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..runtime.errors import InvalidArgument
from ..runtime.files import write_atomically
from .settings import SETTINGS, Found, Place, check_config, check_keys, profile_of, resolve

DATA_DEFAULT = Path(".toque/dev")
DEV_FILE = "dev.json"
ACCOUNT_DEFAULT = "default"


class DevFile(msgspec.Struct, frozen=True):
    """What `toque dev` tells other commands."""

    url: str
    token: str
    account: str = ACCOUNT_DEFAULT


def read_dev_file(data: Path) -> DevFile | None:
    """What a `toque dev` left in its data directory, if anything readable."""
    try:
        return msgspec.json.decode((data / DEV_FILE).read_bytes(), type=DevFile)
    except (OSError, msgspec.MsgspecError):
        return None


def write_dev_file(data: Path, found: DevFile) -> Path:
    """Write the file, for its owner's eyes only."""
    path = data / DEV_FILE
    write_atomically(path, msgspec.json.format(msgspec.json.encode(found)) + b"\n", mode=0o600)
    return path


class Sources(msgspec.Struct, frozen=True):
    """The settings, and the files that they were looked for in.

    Attributes:
        found: each setting.
        project: the project's file, if there is one.
        config: the person's own file, whether it is there or not.
        dev: the dev file, whether it is there or not.
        dev_origin: what a setting comes from if it comes from there.
    """

    found: dict[str, Found]
    project: Path | None
    config: Path
    dev: Path
    dev_origin: str = ""

    def value(self, name: str) -> str | None:
        """A setting's value."""
        return self.found[name].value

    @property
    def url_is_of_dev(self) -> bool:
        """Whether the url is what a `toque dev` has left."""
        return bool(self.dev_origin) and self.found["url"].origin == self.dev_origin

    @property
    def url(self) -> str:
        """The server to call, or `InvalidArgument`."""
        url = self.value("url")
        if url is None:
            raise InvalidArgument(
                f"no 'toque dev' has served {self.dev.parent}: start one with 'toque dev APP.py', "
                "name its directory with '--data DIR', or set TOQUE_URL and TOQUE_TOKEN."
            )
        return url


def find_settings(
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Sources:
    """The settings.

    Args:
        flags: what the command line was given; None counts as not given.
        environment: None: the process's.
        directory: where the command runs; None: the process's.
    """
    env = os.environ if environment is None else environment
    here = Path.cwd() if directory is None else directory
    config = config_path(env)
    places = [Place(f"--{_dashed(n)}", {n: str(v)}) for n, v in flags.items() if v is not None]
    for name in SETTINGS:
        variable = f"TOQUE_{name.upper()}"
        if env.get(variable):
            places.append(Place(variable, {name: env[variable]}))
    project = _project(here)
    if project is not None:
        places.append(Place(_shown(project[0], here), project[1]))
    own = _read_toml(config) if config.is_file() else {}
    check_config(own, str(config))
    if "profile" in own:
        places.append(Place(str(config), {"profile": own["profile"]}))
    profile = resolve(places)["profile"].value
    if profile is not None:
        values = _moved(profile_of(own, profile, str(config)), config.parent)
        places.append(Place(f"profile {profile!r} of {config}", values, True))
    data = here / (resolve(places)["data"].value or DATA_DEFAULT)
    dev, dev_origin = read_dev_file(data), ""
    if dev is not None:
        dev_origin = _shown(data / DEV_FILE, here)
        values = {"url": dev.url, "token": dev.token}
        if resolve(places)["url"].value in (None, dev.url):
            values["account"] = dev.account
        places.append(Place(dev_origin, values, True))
    there = None if project is None else project[0]
    return Sources(resolve(places), there, config, data / DEV_FILE, dev_origin)


def config_path(environment: Mapping[str, str] | None = None) -> Path:
    """A person's own file, whether it is there or not. `environment` None: the process's."""
    env = os.environ if environment is None else environment
    if env.get("TOQUE_CONFIG"):
        return Path(env["TOQUE_CONFIG"])
    base = env.get("XDG_CONFIG_HOME")
    home = Path(env.get("HOME", "~")).expanduser()
    return (Path(base) if base else home / ".config") / "toque" / "config.toml"


def _project(here: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest project file with settings of toque, and these."""
    for folder in (here, *here.parents):
        own = folder / "toque.toml"
        if own.is_file():
            return own, _settled(_read_toml(own), own, str(own))
        shared = folder / "pyproject.toml"
        if shared.is_file():
            values = _read_toml(shared).get("tool", {}).get("toque")
            if values is not None:
                return shared, _settled(values, shared, f"{shared} [tool.toque]")
    return None


def _settled(values: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InvalidArgument(f"{where} must be a table of settings.")
    check_keys(values, where)
    return _moved(values, path.parent)


def _moved(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values; a path that is relative is meant from the file that names it."""
    data = values.get("data")
    return {**values, "data": str(folder / data)} if isinstance(data, str) and data else values


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is no TOML: {error}.") from None
    except OSError as error:
        raise InvalidArgument(f"{path} can't be read: {error.strerror}.") from None


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _shown(path: Path, here: Path) -> str:
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
