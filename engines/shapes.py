"""What a step's body looks like: whether it takes `ctx`, what else it needs, what it returns.

The answer is kept per code object, since bodies are mostly closures that `run` makes anew each
time it executes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any, Never, NoReturn, get_type_hints

import msgspec

from ..runtime.codec import decode_json, decode_json_as, encode_json, has_json_form, type_name
from ..runtime.errors import InvalidArgument
from ..runtime.guarded import shown

CTX = "ctx"
_KEPT_MAX = 4_096
_kept: dict[tuple[Any, Any], Shape] = {}


class Shape:
    """See the module's description.

    Attributes:
        is_async: calling it gives a coroutine.
        takes_ctx: it has a parameter called `ctx`.
        needs: its other parameters that have no default.
        returns: the type that its recorded result is decoded as (`Any`: plain data).
    """

    __slots__ = ("is_async", "needs", "returns", "takes_ctx")

    def __init__(
        self, is_async: bool, takes_ctx: bool, needs: tuple[str, ...], returns: Any
    ) -> None:
        self.is_async = is_async
        self.takes_ctx = takes_ctx
        self.needs = needs
        self.returns = returns

    def decode(self, raw: bytes) -> Any:
        """The recorded result as what the body's annotation promises."""
        if self.returns is Any:
            return decode_json(raw)
        value = decode_json_as(raw, self.returns)
        if hasattr(type(value), "__post_init__"):
            self._check_settled(raw, value)
        return value

    def _check_settled(self, raw: bytes, value: Any) -> None:
        """Reading makes the object anew; that may not change what the body gave."""
        again = encode_json(value)
        if again != raw and decode_json_as(again, self.returns) != value:
            raise ValueError(
                f"__post_init__ of {type(value).__qualname__} changes it each time that it is "
                "read. Right: one that changes nothing the second time; or no annotation."
            )


def shape_of(fn: Callable[..., Any], what: str) -> Shape:
    """The shape of a body.

    Raises:
        InvalidArgument: it is no function that a step can run.
    """
    if type(fn) is not FunctionType:
        return _inspect(fn, what)
    key = fn.__code__, fn.__annotations__.get("return", Any)
    try:
        shape = _kept.get(key)
    except TypeError:  # an annotation that can't be hashed
        return _inspect(fn, what)
    if shape is None:
        shape = _inspect(fn, what)
        if len(_kept) >= _KEPT_MAX:
            _kept.clear()
        _kept[key] = shape
    return shape


def _inspect(fn: Callable[..., Any], what: str) -> Shape:
    if not callable(fn):
        raise InvalidArgument(
            f"the body of {what} is {shown(fn)}, which is no function. Wrong: "
            "`step.do('pay', charge(card))`. Right: `step.do('pay', lambda: charge(card))`."
        )
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - an object with an async __call__
    )
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some built-ins have no signature
        return Shape(is_async, False, (), Any)
    takes_ctx = False
    needs = []
    for parameter in parameters:
        if parameter.name == CTX and parameter.kind is not parameter.POSITIONAL_ONLY:
            takes_ctx = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        elif parameter.default is parameter.empty:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise InvalidArgument(
                    f"the body of {what} has the positional-only parameter {parameter.name!r}; "
                    "parameters of bodies are passed by name."
                )
            needs.append(parameter.name)
    return Shape(is_async, takes_ctx, tuple(needs), _returns(fn, what))


def _returns(fn: Callable[..., Any], what: str) -> Any:
    target = inspect.unwrap(fn)
    target = getattr(target, "__func__", target)
    annotation = getattr(target, "__annotations__", {}).get("return", Any)
    try:
        return usable_type(annotation, target)
    except UnfitType as error:
        raise InvalidArgument(
            f"the body of {what} returns {error}, which has no JSON form. Wrong: "
            "`-> Connection`. Right: `-> dict[str, int]`, a dataclass, a pydantic model, a "
            "datetime, bytes, ..., made from it."
        ) from None


class UnfitType(Exception):
    """An annotation names a class that can't be written as JSON."""


def unfit_part(expected: Any) -> str | None:
    """What within a type has no JSON form, or no single one to read; None: there is none."""
    if expected in (Never, NoReturn):
        return None
    try:
        todo: list[Any] = [msgspec.inspect.type_info(expected)]
    except (NameError, AttributeError):  # for type checkers only: plain data
        return None
    except TypeError as error:  # plain data instead would be of another type than it says
        return f"{type_name(expected)} ({str(error).partition(' - type ')[0]})"
    seen = set()
    while todo:
        part = todo.pop()
        if isinstance(part, (list, tuple)):
            todo.extend(part)
        elif isinstance(part, msgspec.Struct) and id(part) not in seen:
            seen.add(id(part))
            if not isinstance(part, msgspec.inspect.CustomType):
                todo.extend(getattr(part, name) for name in part.__struct_fields__)
            elif not has_json_form(part.cls):
                return part.cls.__qualname__
    return None


def usable_type(annotation: Any, owner: Any) -> Any:
    """An annotation as a type that JSON can be decoded as.

    Names that exist only for type checkers, and abstract types, give plain data (`Any`).

    Raises:
        UnfitType: it names a class that has no JSON form.
    """
    if annotation is Any or annotation is None or annotation in (bool, int, float, str, dict, list):
        return annotation
    found = resolved(annotation, owner)
    part = unfit_part(found)
    if part is not None:
        raise UnfitType(part)
    try:
        decode_json_as(b"null", found)
    except (TypeError, AttributeError, NotImplementedError):
        return Any
    except Exception:  # null does not fit the type, which can be decoded
        return found
    return found


def resolved(annotation: Any, owner: Any) -> Any:
    """An annotation of `owner` with its names looked up; `Any` if they can't be."""
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__={"it": annotation}),
            getattr(owner, "__globals__", {}),
            _closure_of(owner),
            include_extras=True,
        )["it"]
    except (TypeError, NameError, AttributeError, SyntaxError):
        return Any


def _closure_of(owner: Any) -> dict[str, Any]:
    code = getattr(owner, "__code__", None)
    cells = getattr(owner, "__closure__", None) or ()
    known = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return known
