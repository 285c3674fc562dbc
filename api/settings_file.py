"""Changes to a person's own settings file: one key at a time, the rest as it was.

`toque config set` writes into a profile, so that a token stands beside the url that it goes to.
What a person wrote there, comments and order too, stays. The file is replaced as a whole, under a
lock on its folder, and is checked as it is checked when it is read: a change that would leave a
file that no command can use is refused, and changes nothing. Who else may read the file never
learns a token from here: with one in it the file is its owner's only.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.exceptions import TOMLKitError

from ..runtime.errors import InvalidArgument
from ..runtime.files import write_atomically
from .settings import SETTINGS, check_config, check_value, nearest

PROFILE_DEFAULT = "default"
_OWNERS = 0o600
_PROFILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")


class Changed(NamedTuple):
    """What a change has done to the file.

    Attributes:
        before, now: the key's value; None: there was, or is, none.
        profile: whose it is; None: of no profile.
        selected: commands use that profile from now on, because none was chosen before.
    """

    before: str | None
    now: str | None
    profile: str | None = None
    selected: bool = False


def set_value(path: Path, profile: str | None, key: str, value: str) -> Changed:
    """Write a setting.

    Args:
        path: the file; it is made if it is not there.
        profile: whose; None: the one that the file selects, or a first one of that name. It has
            no meaning for the key `profile`, which selects one.
        key: of `SETTINGS`.
        value: as a person gives it.

    Raises:
        InvalidArgument: the key, the value or the file is not as it must be; nothing is written.
    """
    check_key(key)
    value = check_value(key, value, "the value given")

    def change(whole: Any) -> Changed:
        if key == "profile":
            if value not in whole.get("profiles", {}):
                raise InvalidArgument(_no_profile(value, whole, path))
            before = whole.get(key)
            whole[key] = value
            return Changed(None if before is None else str(before), value)
        name = profile or str(whole.get("profile") or PROFILE_DEFAULT)
        _check_profile(name)
        selected = profile is None and "profile" not in whole
        if selected:
            whole["profile"] = name
        known = whole.setdefault("profiles", tomlkit.table(is_super_table=True))
        own = known.setdefault(name, tomlkit.table())
        before = own.get(key)
        own[key] = value
        return Changed(None if before is None else str(before), value, name, selected)

    return _edit(path, change)


def unset_value(path: Path, profile: str | None, key: str) -> Changed:
    """Take a setting out; arguments as of `set_value`.

    Raises:
        InvalidArgument: it is not there, or what is left would not be as it must be.
    """
    check_key(key)

    def change(whole: Any) -> Changed:
        own, name, where = whole, None, str(path)
        if key != "profile":
            name = profile or str(whole.get("profile") or PROFILE_DEFAULT)
            own = whole.get("profiles", {}).get(name, {})
            where = f"profile {name!r} of {path}"
        if key not in own:
            raise InvalidArgument(f"{where} has no {key}; see 'toque config show' for what has.")
        return Changed(str(own.pop(key)), None, name)

    return _edit(path, change)


def check_key(key: str) -> None:
    """`InvalidArgument` unless it is a setting's."""
    if key not in SETTINGS:
        raise InvalidArgument(nearest(key, list(SETTINGS)))


def _check_profile(name: str) -> None:
    if not _PROFILE.match(name):
        raise InvalidArgument(
            f"profile {name!r:.80} is no name: use 1 to 64 letters, digits, '_', '-' and '.', "
            "such as 'prod'."
        )


def _no_profile(name: str, whole: Any, path: Path) -> str:
    there = ", ".join(whole.get("profiles", {})) or "none"
    return (
        f"there is no profile {name!r:.80}; {path} has: {there}. Make one first: "
        f"'toque config set url https://toque.example --profile {name:.80}'."
    )


def _edit(path: Path, change: Callable[[Any], Changed]) -> Changed:
    path = path.resolve()  # a link to the file stays one
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path.parent):
            whole, mode = _read(path)
            check_config(whole.unwrap(), str(path))
            done = change(whole)
            text = tomlkit.dumps(whole)
            read_back = tomlkit.parse(text).unwrap()
            check_config(read_back, str(path))
            if any("token" in each for each in read_back.get("profiles", {}).values()):
                mode = _OWNERS
            write_atomically(path, text.encode(), mode)
    except OSError as error:
        raise InvalidArgument(f"{path} can't be written: {error.strerror}.") from None
    return done


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One change at a time, also over processes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> tuple[Any, int]:
    """What the file holds, and who may read it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            return tomlkit.parse(file.read().decode()), mode
    except FileNotFoundError:
        return tomlkit.document(), _OWNERS
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is no TOML: {error}.") from None
