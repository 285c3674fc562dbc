"""Resources that an author asks for, as Ray takes them; checked where they are given.

Only what says how much of what a body or an instance needs is taken, and environment variables.
Names, lifetimes, restarts and retries are toque's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..runtime import guarded
from ..runtime.errors import InvalidArgument

_EXAMPLE = 'for example {"num_cpus": 2, "num_gpus": 1, "resources": {"fast_disk": 1}}'
_NUMBERS = ("num_cpus", "num_gpus", "memory")
_OWN_KEYS = {"CPU": "num_cpus", "GPU": "num_gpus"}
"""Resources that Ray takes by keys of their own only."""
_LEAST = 0.0001  # Ray counts in such parts
_KNOWN = (*_NUMBERS, "resources", "accelerator_type", "runtime_env")


def check_ray_options(given: object, what: str) -> dict[str, Any]:
    """The options, if they are as they must be.

    Raises:
        InvalidArgument: a wrong type, an unknown key, a value out of range.
    """
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{what} is {guarded.shown(given)}; give a dict, {_EXAMPLE}.")
    for key, value in given.items():
        if key not in _KNOWN:
            raise InvalidArgument(
                f"{what} has the unknown key {guarded.shown(key)}; known are {', '.join(_KNOWN)}."
            )
        if key in _NUMBERS:
            _check_amount(value, f"{what}[{key!r}]")
        elif key == "resources":
            _check_names(value, f"{what}['resources']")
            for name, amount in value.items():
                if name in _OWN_KEYS:
                    raise InvalidArgument(
                        f"{what}['resources'] names {name}; give it as {_OWN_KEYS[name]!r}."
                    )
                _check_amount(amount, f"{what}['resources'][{name!r}]")
        elif key == "accelerator_type":
            if not isinstance(value, str) or not value:
                raise InvalidArgument(
                    f"{what}[{key!r}] is {guarded.shown(value)}; give a name, as 'A100'."
                )
        else:
            _check_environment(value, f"{what}['runtime_env']")
    return dict(given)


def shown(options: Mapping[str, Any]) -> str:
    """The options for people."""
    return ", ".join(f"{key}={value!r}" for key, value in options.items()) or "a Ray task"


def _check_amount(value: object, what: str) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        raise InvalidArgument(
            f"{what} is {guarded.shown(value)}; give a number of at least 0, {_EXAMPLE}."
        )
    if 0 < value < _LEAST:
        raise InvalidArgument(f"{what} is {guarded.shown(value)}; the least is {_LEAST}, or 0.")


def _check_names(value: object, what: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and k for k in value):
        raise InvalidArgument(f"{what} is {guarded.shown(value)}; give a dict by name, {_EXAMPLE}.")


def _check_environment(value: object, what: str) -> None:
    if not isinstance(value, Mapping) or set(value) - {"env_vars"}:
        raise InvalidArgument(
            f"{what} is {guarded.shown(value)}; it takes env_vars only, for example "
            '{"env_vars": {"OMP_NUM_THREADS": "4"}}.'
        )
    variables = value.get("env_vars", {})
    _check_names(variables, f"{what}['env_vars']")
    if not all(isinstance(text, str) for text in variables.values()):
        raise InvalidArgument(f"{what}['env_vars'] must have strings as values.")
    if any("=" in name or "\0" in name + text for name, text in variables.items()):
        raise InvalidArgument(
            f"{what}['env_vars'] may have no '=' in a name, and no NUL character anywhere."
        )
