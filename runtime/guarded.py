"""The one place where what users gave is shown, asked and called, so that it harms nobody.

An exception's `__str__`, an object's `__repr__`, a property, a validator: all of it is code of
somebody else, and may raise anything, `SystemExit` and `KeyboardInterrupt` too. Nothing here
raises because of it, and what is shown is a plain text of bounded length. Classes are asked, not
objects: `isinstance` trusts an object's own `__class__`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .limits import ERROR_MESSAGE_CHARS_MAX

T = TypeVar("T")
_GROUPS_DEEP_MAX = 2
_GROUP_SHOWN_MAX = 5
_VISITED_MAX = 1_000
_NAME = type.__dict__["__name__"].__get__  # a metaclass may have a property of that name


def called(fn: Callable[..., T], *args: Any) -> tuple[BaseException | None, T | None]:
    """What a call raised, and what it gave: one of both is None."""
    try:
        return None, fn(*args)
    except BaseException as error:
        return error, None


def is_a(value: object, kind: type | tuple[type, ...]) -> bool:
    """`isinstance`, whatever the object says of itself."""
    return issubclass(type(value), kind)


def kind_of(value: object) -> str:
    """The name of an object's class."""
    name: str = _NAME(type(value))
    return name


def plain(value: object) -> str | None:
    """A text as a plain `str`; None: it is no text."""
    if not is_a(value, str):
        return None
    return str.__getitem__(value, slice(None))  # type: ignore[index]


def attribute(value: object, name: str) -> Any:
    """An attribute; None: there is none, or asking for it raised."""
    return called(getattr, value, name)[1]


def shown(value: object, chars_max: int = 80) -> str:
    """`repr(value)`, bounded; of what is in a large value no more is asked than is shown."""
    error, text = called(lambda: repr(_cut(value, [chars_max])))
    if error is not None or text is None:
        return f"<{kind_of(value)}; repr() of it raised {kind_of(error)}>"
    return bounded(text, chars_max)


def _cut(value: Any, room: list[int]) -> Any:
    """A copy of a text or a container with no more in it than there is room to show.

    Each thing in it takes a character at least; `room` counts them. Classes of users are left as
    they are.
    """
    room[0] -= 1
    kind = type(value)
    if kind is str or kind is bytes:
        part = value[: max(0, room[0]) + 2]
        room[0] -= len(part)
        return part
    if kind is dict:
        return {key: _cut(each, room) for key, each in value.items() if room[0] > 0}
    if kind in (list, tuple, set, frozenset):
        return kind(_cut(each, room) for each in _while_room(value, room))
    return value


def _while_room(values: Iterable[Any], room: list[int]) -> Iterator[Any]:
    for each in values:
        yield each
        if room[0] <= 0:
            return


def text_of(error: BaseException, depth: int = 0) -> str:
    """`str(error)`, bounded; of a group, also what is in it."""
    failed, text = called(str, error)
    if failed is not None and is_a(error, Exception):
        text = _of_arguments(error, failed)
    elif failed is not None or text is None:
        text = f"(its text can't be made: {kind_of(failed)})"
    if is_a(error, BaseExceptionGroup) and depth < _GROUPS_DEEP_MAX:
        inside = _inside(error)[:_GROUP_SHOWN_MAX]
        inner = "; ".join(f"{kind_of(e)}: {text_of(e, depth + 1)}" for e in inside)
        text = f"{text}: {inner}"
    return bounded(text)


def _of_arguments(error: BaseException, failed: BaseException) -> str:
    """What is said of an error whose own `__str__` raises: the fault, and what it was made of."""
    told = f"(its text can't be made: {kind_of(failed)})"
    args = called(BaseException.args.__get__, error)[1]  # type: ignore[attr-defined]
    return f"{told} {', '.join(shown(arg) for arg in args[:3])}" if args else told


def bounded(text: str, chars_max: int = ERROR_MESSAGE_CHARS_MAX) -> str:
    """The text, cut to a number of characters and free of lone surrogates."""
    text = str.__getitem__(text, slice(None))  # of a class of its own, perhaps
    if len(text) > chars_max:
        text = f"{text[: chars_max - 1]}…"
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text


def is_vast(error: BaseException) -> bool:
    """Whether it is a group of so many errors that going through all of them takes too long."""
    todo = [error]
    seen = 0
    while todo and seen <= _VISITED_MAX:
        seen += 1
        one = todo.pop()
        if is_a(one, BaseExceptionGroup):
            todo.extend(_inside(one))
    return seen > _VISITED_MAX


def _inside(group: BaseException) -> tuple[BaseException, ...]:
    """What is in a group, whatever its class says."""
    inside: tuple[BaseException, ...] = BaseExceptionGroup.exceptions.__get__(group)
    return inside


def log(to: logging.Logger, level: int, message: str, *args: Any, error: BaseException) -> None:
    """Log with an error of a user; its traceback and handlers of users may raise."""
    is_much = to.isEnabledFor(level) and is_vast(error)
    info = None if is_much else error
    failed, _ = called(lambda: to.log(level, message, *args, exc_info=info))
    if failed is not None:
        called(lambda: to.log(level, "%s (its log raised %s)", message % args, kind_of(failed)))
