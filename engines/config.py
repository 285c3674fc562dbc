"""A step's settings: how authors write them, and the resolved form that the journal keeps.

Everything is checked where it is given; unknown keys are refused. `limit` N is N *retries*, so
N + 1 attempts. The resolved form is recorded when the step starts and used from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import msgspec

from ..runtime import limits
from ..runtime.errors import InvalidArgument
from .durations import Duration, duration_ms

Backoff = Literal["constant", "linear", "exponential"]
_BACKOFFS = ("constant", "linear", "exponential")


class Resolved(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A step's settings in plain numbers, as recorded."""

    limit: int = limits.STEP_RETRIES_DEFAULT
    delay_ms: int = limits.STEP_RETRY_DELAY_DEFAULT_MS
    backoff: str = "exponential"
    timeout_ms: int = limits.STEP_TIMEOUT_DEFAULT_MS

    def delay_after_ms(self, failures: int) -> int:
        """How long to wait after the `failures`-th failure (1 is the first)."""
        if self.backoff == "constant":
            delay_ms = self.delay_ms
        elif self.backoff == "linear":
            delay_ms = self.delay_ms * failures
        else:
            delay_ms = self.delay_ms << min(failures - 1, 64)
        return min(delay_ms, limits.RETRY_DELAY_MAX_MS)


DEFAULTS = Resolved()


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How a failed step is repeated.

    Attributes:
        limit: number of retries; 0 means one attempt and no more, even after a crash.
        delay: wait before the first retry; a number is in seconds.
        backoff: how the wait grows: `constant`: d, `linear`: d * n, `exponential`: d * 2^(n-1).
    """

    limit: int = limits.STEP_RETRIES_DEFAULT
    delay: Duration = limits.STEP_RETRY_DELAY_DEFAULT_MS / 1_000
    backoff: Backoff = "exponential"


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """A step's settings.

    Attributes:
        retries: how it is repeated.
        timeout: how long one attempt may take; a number is in seconds.
    """

    retries: Retries | Mapping[str, Any] = Retries()
    timeout: Duration = limits.STEP_TIMEOUT_DEFAULT_MS / 1_000


def resolve(config: StepConfig | Mapping[str, Any] | None, step: str) -> Resolved:
    """The settings of a step in plain numbers.

    Raises:
        InvalidArgument: a wrong type, an unknown key, a value out of range.
    """
    if config is None:
        return DEFAULTS
    whole = _fields_of(config, StepConfig, f"config of step {step!r}")
    retries = _fields_of(whole.get("retries"), Retries, f"config.retries of step {step!r}")
    limit = retries.get("limit", DEFAULTS.limit)
    if type(limit) is not int or not 0 <= limit <= limits.STEP_RETRIES_MAX:
        raise InvalidArgument(
            f"config.retries.limit of step {step!r} is {limit!r:.80}; it must be a whole number "
            f"from 0 to {limits.STEP_RETRIES_MAX}, for example 5 (five retries, six attempts)."
        )
    backoff = retries.get("backoff", DEFAULTS.backoff)
    if backoff not in _BACKOFFS:
        raise InvalidArgument(
            f"config.retries.backoff of step {step!r} is {backoff!r:.80}; "
            "it must be 'constant', 'linear' or 'exponential'."
        )
    return Resolved(
        limit=limit,
        delay_ms=duration_ms(
            retries.get("delay", DEFAULTS.delay_ms / 1_000),
            f"config.retries.delay of step {step!r}",
            max_ms=limits.RETRY_DELAY_MAX_MS,
        ),
        backoff=cast(str, backoff),
        timeout_ms=duration_ms(
            whole.get("timeout", DEFAULTS.timeout_ms / 1_000),
            f"config.timeout of step {step!r}",
            min_ms=1,
        ),
    )


def _fields_of(given: object, form: type, what: str) -> dict[str, Any]:
    """The given fields of a dataclass or mapping; unknown keys and other types are refused."""
    if given is None:
        return {}
    names = [field.name for field in fields(form)]
    if isinstance(given, form):
        return {name: getattr(given, name) for name in names}
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"{what} is {given!r:.80}; give a dict or {form.__name__}, for example "
            "{'retries': {'limit': 3, 'delay': '5 seconds'}, 'timeout': '1 minute'}."
        )
    unknown = [key for key in given if key not in names]
    if unknown:
        raise InvalidArgument(
            f"{what} has the unknown key {unknown[0]!r:.80}; known are {', '.join(names)}."
        )
    return {key: value for key, value in given.items() if value is not None}
