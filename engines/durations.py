"""Durations and instants as authors write them, checked where they are given.

A duration is a `timedelta`, a string such as "10 seconds", "5 min" or "500 ms", or a plain number,
which means **seconds**, as in Python's own `time.sleep`. (Cloudflare's JavaScript API means
milliseconds; a number copied from there must be divided by 1000.)
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import cast

from ..runtime.errors import InvalidArgument
from ..runtime.guarded import called, is_a, plain, shown
from ..runtime.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, SLEEP_MAX_MS

Duration = timedelta | str | int | float

_FAR_MS = 10**18
_UNITS_MS = {
    unit: ms
    for ms, units in (
        (1, "ms msec msecs millisecond milliseconds"),
        (SECOND_MS, "s sec secs second seconds"),
        (MINUTE_MS, "m min mins minute minutes"),
        (HOUR_MS, "h hr hrs hour hours"),
        (DAY_MS, "d day days"),
        (7 * DAY_MS, "w week weeks"),
        (30 * DAY_MS, "month months"),
        (365 * DAY_MS, "y year years"),
    )
    for unit in units.split()
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*\Z", re.IGNORECASE | re.ASCII)


def duration_ms(value: object, what: str, *, min_ms: int = 0, max_ms: int = SLEEP_MAX_MS) -> int:
    """A duration in whole milliseconds, rounded up.

    Args:
        value: see the module's description.
        what: names the argument in messages, for example "timeout of step 'pay'".
        min_ms: smallest value that is accepted.
        max_ms: largest value that is accepted.

    Raises:
        InvalidArgument

    >>> duration_ms("5 minutes", "delay"), duration_ms(1.5, "delay")
    (300000, 1500)
    """
    exact = _exact_ms(value)
    if exact is None or math.isnan(exact):
        is_text = plain(value) is not None
        more = "" if is_text else ", timedelta(minutes=5), or a number of seconds, such as 300"
        raise _no_duration(value, what, more)
    hint = "" if is_a(value, str) else " (A plain number is in seconds: 0.5 is half a second.)"
    return _bounded(math.ceil(exact - 1e-6), value, what, (min_ms, max_ms), hint)


def json_duration_ms(
    value: int | str, what: str, *, min_ms: int = 0, max_ms: int = SLEEP_MAX_MS
) -> int:
    """A duration as a JSON body gives it: a text, or a whole number of milliseconds.

    Args:
        value, what, min_ms, max_ms: as of `duration_ms`.

    Raises:
        InvalidArgument

    >>> json_duration_ms("5 minutes", "start_in"), json_duration_ms(1500, "start_in")
    (300000, 1500)
    """
    bounds = min_ms, max_ms
    if isinstance(value, int):
        return _bounded(value, value, what, bounds, " (A number is in milliseconds.)")
    ms = _text_ms(value)
    if math.isnan(ms):
        more = ", or a number (no text) of milliseconds, such as 300000"
        raise _no_duration(value, what, more)
    return _bounded(math.ceil(_near(ms) - 1e-6), value, what, bounds, "")


def told_ms(ms: int) -> str:
    """A duration as people read it.

    >>> told_ms(30 * 86_400_000), told_ms(90_000), told_ms(1_500), told_ms(0)
    ('30 days', '90 s', '1.5 s', '0 s')
    """
    for unit_ms, one in ((DAY_MS, "day"), (HOUR_MS, "hour"), (MINUTE_MS, "minute")):
        if ms and ms % unit_ms == 0:
            number = ms // unit_ms
            return f"{number} {one}{'' if number == 1 else 's'}"
    if ms % SECOND_MS and abs(ms) < SECOND_MS:
        return f"{ms} ms"
    return f"{ms / SECOND_MS:.3f}".rstrip("0").rstrip(".") + " s"


def _no_duration(value: object, what: str, more: str) -> InvalidArgument:
    """Say what is right where it was given: a text always is, `more` is what else may be given."""
    return InvalidArgument(
        f"{what} is {shown(value)}, which is no duration. "
        f"Right: '5 minutes', '30s', '500 ms'{more}."
    )


def _bounded(whole: int, value: object, what: str, bounds: tuple[int, int], hint: str) -> int:
    least, most = bounds
    if least <= whole <= most:
        return whole
    if abs(whole) >= _FAR_MS:
        told = " (beyond all bounds)"
    else:
        told = "" if is_a(value, str) else f" ({told_ms(whole)})"
    limit = f"at most {told_ms(most)}" if whole > most else f"at least {told_ms(least)}"
    raise InvalidArgument(f"{what} is {shown(value)}{told}; it must be {limit}.{hint}")


def is_duration(value: object) -> bool:
    """Whether it is a duration at all, within whatever bounds."""
    exact = _exact_ms(value)
    return exact is not None and not math.isnan(exact)


def _exact_ms(value: object) -> float | None:
    """Milliseconds, at most `_FAR_MS` either way; None: it is no duration."""
    if is_a(value, bool):
        return None
    if is_a(value, timedelta):
        return timedelta.__truediv__(cast(timedelta, value), timedelta(milliseconds=1))
    if is_a(value, int):
        return _near(int.__mul__(cast(int, value), SECOND_MS))
    if is_a(value, float):
        seconds = float.__float__(cast(float, value))
        return _near(seconds * SECOND_MS) if math.isfinite(seconds) else None
    text = plain(value)
    return None if text is None else _near(_text_ms(text))


def _near(ms: float) -> float:
    return min(max(ms, -_FAR_MS), _FAR_MS)  # NaN stays NaN


def _text_ms(text: str) -> float:
    match = _TEXT.match(text)
    unit = _UNITS_MS.get(match[2].lower()) if match else None
    return float(match[1]) * unit if match and unit else math.nan


def instant_ms(value: object, what: str) -> int:
    """An instant in whole milliseconds since 1970: an aware `datetime`, or seconds since 1970.

    Raises:
        InvalidArgument
    """
    if is_a(value, datetime):
        when = cast(datetime, value)
        if when.tzinfo is None:
            raise InvalidArgument(
                f"{what} is {shown(value)}, which has no time zone. Wrong: datetime.now(). "
                "Right: datetime.now(timezone.utc) + timedelta(hours=1)."
            )
        seconds = called(when.timestamp)[1]  # a time zone of its own may raise anything
    else:
        ms = _exact_ms(value) if is_a(value, (int, float)) else None
        seconds = None if ms is None else ms / SECOND_MS
        if seconds is not None and not 0 <= seconds < 253_402_300_800:  # year 10000
            raise InvalidArgument(
                f"{what} is {shown(value)}, which is not within the years 1970 to 9999. "
                "A number means seconds since 1970, such as 1767225600; not milliseconds."
            )
    if seconds is not None:
        return math.ceil(seconds * SECOND_MS - 1e-6)
    raise InvalidArgument(
        f"{what} is {shown(value)}, which is no instant. Wrong: '10:30'. "
        "Right: datetime(2030, 1, 1, tzinfo=timezone.utc), or seconds since 1970."
    )
