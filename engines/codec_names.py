"""Codecs as they are given at the edge: objects, or the names of objects.

A name is `package.module:attribute` or `file.py:attribute`; the attribute is a codec, or a class
or function that makes one. Shards in processes of their own take names only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..runtime.errors import InvalidArgument
from ..runtime.guarded import shown
from ..runtime.payload_codec import Carried, Codecs, PayloadCodec, Seal
from .workflow import load_file

Given = PayloadCodec | str | Sequence[PayloadCodec | str]


def codecs_of(given: Mapping[str, Given] | None) -> Codecs:
    """The codecs that are meant.

    Raises:
        InvalidArgument: a name leads to nothing, or something is no codec.
    """
    found = {account: [_found(one) for one in _all(some)] for account, some in _items(given)}
    names = {}
    for account, some in _items(given):
        named = [_whole(one) for one in _all(some) if isinstance(one, str)]
        if len(named) == len(found[account]):
            names[account] = named
    return Codecs(found, names)


def seal_of(carried: Carried) -> Seal:
    """In another process: the seal that `Seal.carried` tells of.

    Raises:
        InvalidArgument: see `codecs_of`.
    """
    account, names = carried
    if names is None:
        return Seal(account, is_absent=True)
    return codecs_of({account: list(names)}).seal(account) if names else Seal(account)


def names_of(given: Mapping[str, Given] | None) -> dict[str, list[str]]:
    """The same as plain data, for other processes; everything must be a name.

    Raises:
        InvalidArgument
    """
    codecs_of(given)
    named: dict[str, list[str]] = {}
    for account, some in _items(given):
        for one in _all(some):
            if not isinstance(one, str):
                raise InvalidArgument(
                    f"{shown(one)} can't be carried to the processes of the shards. Right: its "
                    "name, such as 'shop.security:codec' or 'codecs.py:codec'."
                )
            named.setdefault(account, []).append(_whole(one))
    return named


def _whole(name: str) -> str:
    """The name as it holds in any folder."""
    where, _, attribute = name.partition(":")
    return f"{Path(where).resolve() if where.endswith('.py') else where}:{attribute}"


def _items(given: Mapping[str, Given] | None) -> list[tuple[str, Given]]:
    return list((given or {}).items())


def _all(some: Given) -> list[PayloadCodec | str]:
    return list(some) if isinstance(some, (list, tuple)) else [some]  # type: ignore[list-item]


def _found(one: PayloadCodec | str) -> PayloadCodec:
    if not isinstance(one, str):
        return one
    name, _, attribute = one.partition(":")
    try:
        module = load_file(name) if name.endswith(".py") else import_module(name)
        found: Any = getattr(module, attribute)
        made: PayloadCodec = (
            found if isinstance(found, PayloadCodec) and not callable(found) else (found())
        )
    except Exception as error:
        raise InvalidArgument(
            f"codec {shown(one, 200)} can't be had: {type(error).__name__}: {error}. Right: "
            "'shop.security:codec' or 'codecs.py:codec'."
        ) from None
    return made
