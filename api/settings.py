"""Settings of the command line, from several places, with where each comes from.

Pure: what the places hold comes in, one value and its origin for each setting goes out. Earlier
places win: flag, environment (`TOQUE_*`), the project's file, the profile, the data directory's
dev file, the default. A key that is not known is refused with the nearest one that is.

A token that stands in a profile or a dev file is sent to the url beside it only, so that a url from
elsewhere (a project's file, say) never gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from ..engines.durations import duration_ms, is_duration
from ..runtime import limits
from ..runtime.errors import InvalidArgument, ToqueError
from ..runtime.ids import check_account_id

DEFAULT_ORIGIN = "default"


class Setting(NamedTuple):
    """One setting.

    Attributes:
        help: what it is.
        default: its value if no place has one.
        right: an example.
        check: gives the value as it is used, or raises.
        in_project: whether a project's file may hold it.
        in_profile: whether a profile may.
    """

    help: str
    default: str | None
    right: str
    check: Callable[[str], str] = str
    in_project: bool = True
    in_profile: bool = True


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise InvalidArgument("it must start with http:// or https://")
    return text.rstrip("/")


def _duration(text: str) -> str:
    is_number = text.isascii() and text.replace(".", "", 1).isdigit()
    whole = f"{text} s" if is_number else text
    if not is_duration(whole):
        raise InvalidArgument("it is no duration")
    duration_ms(whole, "it")
    return whole


def _token(text: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidArgument("a token is visible ASCII without spaces")
    return text


def _output(text: str) -> str:
    if text not in OUTPUTS:
        raise InvalidArgument(f"it must be one of {', '.join(OUTPUTS)}")
    return text


OUTPUTS = ("table", "json", "ids")
SETTINGS = {
    "url": Setting("the server", None, "http://127.0.0.1:8787", _url),
    "token": Setting("the bearer token", None, "tq_...", _token, in_project=False),
    "account": Setting("the account", "default", "shop", check_account_id),
    "profile": Setting("the profile to use", None, "prod", in_profile=False),
    "data": Setting("the data directory of 'toque dev'", ".toque/dev", ".toque/dev"),
    "output": Setting("how to print: table, json or ids", "table", "json", _output),
    "timeout": Setting("of each call, with its repeats", None, "30s", _duration),
    "retry_for": Setting(
        "how long a call is repeated", f"{limits.CLI_RETRY_FOR_MS // 1000} s", "10s", _duration
    ),
}


class Place(NamedTuple):
    """Where settings stand.

    Attributes:
        name: for people.
        values: what it holds.
        bound_token: its token goes to its own url only.
    """

    name: str
    values: Mapping[str, Any]
    bound_token: bool = False


class Found(NamedTuple):
    """A setting's value, None if there is none, and where it comes from."""

    value: str | None
    origin: str


def resolve(places: Iterable[Place]) -> dict[str, Found]:
    """Each setting's value. `places`: earlier ones win; None in them counts as not given."""
    ordered = list(places)
    found = {name: _first(name, ordered) for name in SETTINGS if name != "token"}
    url = found["url"].value
    fitting = [place for place in ordered if not place.bound_token or _same(place, url)]
    found["token"] = _first("token", fitting)
    return {name: found[name] for name in SETTINGS}


def _same(place: Place, url: str | None) -> bool:
    return url is not None and str(place.values.get("url", "")).rstrip("/") == url


def _first(name: str, places: list[Place]) -> Found:
    for place in places:
        value = place.values.get(name)
        if value is not None:
            return Found(check_value(name, value, place.name), place.name)
    return Found(SETTINGS[name].default, DEFAULT_ORIGIN)


def check_value(name: str, value: Any, where: str) -> str:
    """A setting's value as it is used, or `InvalidArgument`. `where`: what holds it."""
    setting = SETTINGS[name]
    shown = "its value" if name == "token" else f"{value!r:.80}"
    try:
        if not isinstance(value, (str, int, float)) or isinstance(value, bool) or value == "":
            raise InvalidArgument("it must be a text")
        return setting.check(str(value))
    except ToqueError as error:
        told = str(error).rstrip(".")
        raise InvalidArgument(
            f"{where}: {name} is {shown}, but {told}. Right: {setting.right}."
        ) from None


def check_keys(values: Mapping[str, Any], where: str, *, profile: bool = False) -> None:
    """Refuse keys that a project's file, or a profile, may not have."""
    known = [n for n, s in SETTINGS.items() if (s.in_profile if profile else s.in_project)]
    for name in values:
        if name == "token" and not profile:
            raise InvalidArgument(
                f"{where}: a token does not belong in a project's file, which others read. "
                "Right: TOQUE_TOKEN, or a profile of your own (see 'toque config path')."
            )
        if name not in known:
            raise InvalidArgument(f"{where}: {nearest(name, known)}")


def profile_of(config: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The profile of that name in a person's own file."""
    profiles = config.get("profiles", {})
    check_config(config, where)
    if name not in profiles:
        there = f" {where} has: {', '.join(profiles)}." if profiles else f" {where} has none."
        raise InvalidArgument(f"there is no profile {name!r:.80}.{there}")
    return dict(profiles[name])


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Refuse what a person's own file may not hold."""
    for name in config:
        if name not in ("profile", "profiles"):
            raise InvalidArgument(f"{where}: {nearest(name, ['profile', 'profiles'])}")
    profiles = config.get("profiles", {})
    if not isinstance(profiles, Mapping) or not all(
        isinstance(each, Mapping) for each in profiles.values()
    ):
        raise InvalidArgument(f"{where}: profiles are tables. Right: [profiles.prod].")
    for name, values in profiles.items():
        check_keys(values, f"{where} [profiles.{name}]", profile=True)
        if "token" in values and "url" not in values:
            raise InvalidArgument(
                f"{where} [profiles.{name}] has a token but no url to send it to. Right: "
                'url = "https://toque.example".'
            )


def nearest(name: str, known: list[str]) -> str:
    """That a name is not known, with the nearest one that is."""
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{name!r:.80} is not known.{hint} Known: {', '.join(known)}."


def hidden(token: str) -> str:
    """A token as it may be shown: which one it is, not its secret."""
    parts = token.split("_")
    if len(parts) >= 3 and parts[0] == "tq":
        return f"tq_{parts[1]}_..."
    return f"{token[:4]}..." if len(token) > 12 else "..."
