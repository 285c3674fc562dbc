"""Codecs as they are given at the edge: objects, or the names of objects.

A name is `package.module:attribute` or `file.py:attribute`; the attribute is a codec, or a class
or function that makes one. Shards in processes of their own take names only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..engines.journal import CODECS
from ..engines.workflow import load_file
from ..runtime.errors import InvalidArgument
from ..runtime.payload_codec import SAMPLE, Codecs, PayloadCodec, check_sample, missing
from ..runtime.store import Store

Given = PayloadCodec | str | Sequence[PayloadCodec | str]


def codecs_of(given: Mapping[str, Given] | None) -> Codecs:
    """The codecs that are meant.

    Raises:
        InvalidArgument: a name leads to nothing, or something is no codec.
    """
    return Codecs({account: [_found(one) for one in _all(some)] for account, some in _items(given)})


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
                    f"{one!r:.80} can't be carried to the processes of the shards. Right: its "
                    "name, such as 'shop.security:codec' or 'codecs.py:codec'."
                )
            name, _, attribute = one.partition(":")
            is_file = name.endswith(".py")
            where = str(Path(name).resolve()) if is_file else name
            named.setdefault(account, []).append(f"{where}:{attribute}")
    return named


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
            f"codec {one!r:.200} can't be had: {type(error).__name__}: {error}. Right: "
            "'shop.security:codec' or 'codecs.py:codec'."
        ) from None
    return made


def settle_codecs(store: Store, codecs: Codecs) -> None:
    """Check a shard that is being opened against the codecs, and note those that are new to it.

    Raises:
        CodecMissing, CodecWrong: nothing of the shard may be touched without them.
    """
    known = {(row[0], row[1]): row[2] for row in store.scan(CODECS)}
    named = {(account, codec.id): codec for account, codec in codecs}
    for (account, codec_id), sample in known.items():
        codec = named.get((account, codec_id))
        if codec is None:
            raise missing(account, codec_id)
        check_sample(codecs.seal(account), codec, sample, account)
    for (account, codec_id), codec in named.items():
        if (account, codec_id) not in known:
            sample = codecs.seal(account).encode(codec, SAMPLE)
            store.put("codecs", CODECS, (account, codec_id, sample))
