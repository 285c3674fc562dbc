"""A step's settings: how authors write them, and the resolved form that the journal keeps.

Everything is checked where it is given; unknown keys are refused. `limit` N is N *retries*, so
N + 1 attempts. The resolved form is recorded when the step starts and used from then on;
of a delay that is a function, what it answers is recorded after each failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import msgspec

from ..runtime import limits
from ..runtime.errors import InvalidArgument
from ..runtime.guarded import shown
from .durations import Duration, duration_ms

Backoff = Literal["constant", "linear", "exponential"]
_BACKOFFS = ("constant", "linear", "exponential")
DelayFunction = Callable[[Any, Any], "Duration | Awaitable[Duration]"]
"""`fn(ctx, error)` gives the wait before the next attempt; it may be `async`."""


class Resolved(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A step's settings in plain numbers, as recorded.

    Attributes:
        delay_ms: None: a function tells it.
        deadline_ms: for all attempts and the waits between them; 0: none.
        sensitive: the output is shown to nobody.
    """

    limit: int = limits.STEP_RETRIES_DEFAULT
    delay_ms: int | None = limits.STEP_RETRY_DELAY_DEFAULT_MS
    backoff: str = "exponential"
    timeout_ms: int = limits.STEP_TIMEOUT_DEFAULT_MS
    deadline_ms: int = 0
    sensitive: bool = False

    def delay_after_ms(self, failures: int, told_ms: int = 0) -> int:
        """How long to wait after the `failures`-th failure (1 is the first).

        `told_ms` is what the function told, where the delay is one.
        """
        base_ms = told_ms if self.delay_ms is None else self.delay_ms
        if self.backoff == "constant":
            delay_ms = base_ms
        elif self.backoff == "linear":
            delay_ms = base_ms * failures
        else:
            delay_ms = base_ms << min(failures - 1, 64)
        return min(delay_ms, limits.RETRY_DELAY_MAX_MS)


DEFAULTS = Resolved()


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How a failed step is repeated.

    Attributes:
        limit: number of retries; 0 means one attempt and no more, even after a crash.
        delay: wait before the first retry; a number is in seconds. Or a function
            `fn(ctx, error)` that gives it, asked after each failure; it has five seconds, and if
            it fails the step does too.
        backoff: how the wait grows: `constant`: d, `linear`: d * n, `exponential`: d * 2^(n-1).
    """

    limit: int = limits.STEP_RETRIES_DEFAULT
    delay: Duration | DelayFunction = limits.STEP_RETRY_DELAY_DEFAULT_MS / 1_000
    backoff: Backoff = "exponential"


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """A step's settings.

    Attributes:
        retries: how it is repeated.
        timeout: how long one attempt may take; a number is in seconds.
        deadline: how long the whole step may take, with all attempts and the waits between them;
            it outlives crashes. None: as long as it takes.
        sensitive: "output": what the step returns is shown nowhere, only `run` gets it.
    """

    retries: Retries | Mapping[str, Any] = Retries()
    timeout: Duration = limits.STEP_TIMEOUT_DEFAULT_MS / 1_000
    deadline: Duration | None = None
    sensitive: Literal["output"] | None = None


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
            f"config.retries.limit of step {step!r} is {shown(limit)}; it must be a whole number "
            f"from 0 to {limits.STEP_RETRIES_MAX}, for example 5 (five retries, six attempts)."
        )
    backoff = retries.get("backoff", DEFAULTS.backoff)
    if backoff not in _BACKOFFS:
        raise InvalidArgument(
            f"config.retries.backoff of step {step!r} is {shown(backoff)}; "
            "it must be 'constant', 'linear' or 'exponential'."
        )
    sensitive = whole.get("sensitive")
    if sensitive not in (None, "output"):
        raise InvalidArgument(
            f"config.sensitive of step {step!r} is {shown(sensitive)}; it can be 'output' only."
        )
    deadline = whole.get("deadline")
    return Resolved(
        limit=limit,
        delay_ms=_delay_ms(retries.get("delay"), step),
        backoff=cast(str, backoff),
        timeout_ms=duration_ms(
            whole.get("timeout", DEFAULTS.timeout_ms / 1_000),
            f"config.timeout of step {step!r}",
            min_ms=1,
        ),
        deadline_ms=0
        if deadline is None
        else duration_ms(deadline, f"config.deadline of step {step!r}", min_ms=1),
        sensitive=sensitive is not None,
    )


def _delay_ms(delay: Any, step: str) -> int | None:
    what = f"config.retries.delay of step {step!r}"
    if delay is None:
        return DEFAULTS.delay_ms
    if not callable(delay):
        return duration_ms(delay, what, max_ms=limits.RETRY_DELAY_MAX_MS)
    try:
        inspect.signature(delay).bind(None, None)
    except TypeError as error:
        raise InvalidArgument(
            f"{what} can't be called with (ctx, error): {error}. Right: "
            "`'delay': lambda ctx, error: 2 * ctx.attempt`."
        ) from None
    except ValueError:  # some built-ins have no signature
        pass
    return None


def delay_function(config: StepConfig | Mapping[str, Any] | None) -> DelayFunction | None:
    """The function in the place of a delay, in settings that `resolve` has accepted."""
    whole = config.retries if isinstance(config, StepConfig) else (config or {}).get("retries")
    delay = whole.delay if isinstance(whole, Retries) else (whole or {}).get("delay")
    return delay if callable(delay) else None


def _fields_of(given: object, form: type, what: str) -> dict[str, Any]:
    """The given fields of a dataclass or mapping; unknown keys and other types are refused."""
    if given is None:
        return {}
    names = [field.name for field in fields(form)]
    if isinstance(given, form):
        return {name: getattr(given, name) for name in names}
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"{what} is {shown(given)}; give a dict or {form.__name__}, for example "
            "{'retries': {'limit': 3, 'delay': '5 seconds'}, 'timeout': '1 minute'}."
        )
    unknown = [key for key in given if key not in names]
    if unknown:
        raise InvalidArgument(
            f"{what} has the unknown key {shown(unknown[0])}; known are {', '.join(names)}."
        )
    return {key: value for key, value in given.items() if value is not None}
