"""Which methods of an entity class may be called, and how their arguments are checked.

A handler is a public method of the class. Its annotations are its contract: arguments are
decoded from MessagePack straight into them, and a call that does not fit is refused before the
handler runs. Missing annotations mean plain data.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from .entity import DurableObject
from .errors import InvalidArgument, UnknownMethod

HANDLERS_KEPT = 1_024
"""Of so many handlers is known how their arguments are checked."""
_LIFECYCLE = frozenset({"alarm", "on_evict", "on_resume", "resume_keys"})


class Handler(NamedTuple):
    """A callable method of an entity class."""

    function: Callable[..., Any]
    decode: Callable[[msgspec.Raw], tuple[Any, ...]]


def handlers_of(cls: type[DurableObject]) -> dict[str, Handler]:
    """The handlers of a class, by method name."""
    found = {}
    for name in dir(cls):
        if name.startswith("_") or name in _LIFECYCLE:
            continue
        function = inspect.getattr_static(cls, name)
        if inspect.isfunction(function):
            found[name] = Handler(function, _decoder(name, function))
    return found


@lru_cache(HANDLERS_KEPT)  # every shard has the same classes; annotations take long to read
def _decoder(name: str, function: Callable[..., Any]) -> Callable[[msgspec.Raw], tuple[Any, ...]]:
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise TypeError(
                f"{function.__qualname__}: a handler takes positional parameters only, "
                f"not {parameter}"
            )
    types = [hints.get(parameter.name, Any) for parameter in parameters]
    if all(parameter.default is parameter.empty for parameter in parameters):
        fixed: Any = tuple.__class_getitem__(tuple(types))
        return msgspec.msgpack.Decoder(fixed).decode
    fields = [
        (parameter.name, hint)
        if parameter.default is parameter.empty
        else (parameter.name, hint, parameter.default)
        for parameter, hint in zip(parameters, types, strict=True)
    ]
    shape = msgspec.defstruct(name, fields, array_like=True, forbid_unknown_fields=True)
    decoder = msgspec.msgpack.Decoder(shape)
    return lambda raw: msgspec.structs.astuple(decoder.decode(raw))


def decode_arguments(handler: Handler, kind: str, method: str, raw: msgspec.Raw) -> tuple[Any, ...]:
    """The arguments of a call.

    Raises:
        InvalidArgument: they do not fit the handler's annotations.
    """
    try:
        return handler.decode(raw)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidArgument(f"{kind}.{method}: {error}") from None


def find(handlers: dict[str, Handler], kind: str, method: str) -> Handler:
    """The handler of that name.

    Raises:
        UnknownMethod
    """
    handler = handlers.get(method)
    if handler is None:
        raise UnknownMethod(
            f"{kind} has no method {method!r:.80}; it has {', '.join(sorted(handlers)) or 'none'}."
        )
    return handler
