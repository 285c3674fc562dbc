"""Payload codecs: what an account's data goes through on its way to disk, and back.

For encryption or compression. Each account has one codec that writes, and any number that read:
the id of the codec stands before every payload, so what an older one wrote stays readable as long
as it is named. What was written without a codec stays readable, too. A codec is pure: the same
bytes must come back, today and in ten years.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from .errors import CallerError, InvalidArgument, SystemFault
from .guarded import shown
from .limits import ACCOUNTS_MAX

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_MARK = b"\x00"
"""No JSON and no MessagePack of ours begins with it."""
SAMPLE = b'"a sample, by which a codec is known again"'


@runtime_checkable
class PayloadCodec(Protocol):
    """What to give for an account. Its methods may raise anything; errors are told as ours.

    Attributes:
        id: stands before each payload; another key or format wants another id.
    """

    id: str

    def encode(self, raw: bytes) -> bytes:
        """As it is to be on disk."""

    def decode(self, kept: bytes) -> bytes:
        """What `encode` was given."""


class CodecMissing(CallerError):
    """A data directory holds payloads of a codec that was not named."""

    code = "codec.missing"
    number = 10340


class CodecWrong(CallerError):
    """A codec of that id does not give back what was written under it: another key, perhaps."""

    code = "codec.wrong"
    number = 10341


class CodecFailed(SystemFault):
    """A codec raised, or gave something that is no bytes."""

    code = "codec.failed"
    number = 10342


class ZlibCodec:
    """Compression. Short payloads are kept as they are.

    Args:
        level: 1 (fast) to 9 (small).
    """

    id = "zlib"
    _SHORT = 200

    def __init__(self, level: int = 1) -> None:
        self._level = level

    def encode(self, raw: bytes) -> bytes:
        """As it is to be on disk."""
        if len(raw) < self._SHORT:
            return b"0" + raw
        return b"1" + zlib.compress(raw, self._level)

    def decode(self, kept: bytes) -> bytes:
        """What `encode` was given."""
        return zlib.decompress(kept[1:]) if kept[:1] == b"1" else kept[1:]


Carried = tuple[str, list[str] | None]
"""See `Seal.carried`."""


class Seal:
    """One account's codecs, at work.

    Args:
        account: named in messages.
        codecs: the first one writes, all read.
        names: by which other processes find the codecs; None: they can't.
        is_absent: this process is one that can't: what it would write belongs sealed.

    Attributes:
        writes: whether there is a codec that writes.
    """

    __slots__ = ("_account", "_head", "_names", "_readers", "_writer", "is_absent", "writes")

    def __init__(
        self,
        account: str,
        codecs: Sequence[PayloadCodec] = (),
        names: Sequence[str] | None = None,
        *,
        is_absent: bool = False,
    ) -> None:
        self._account = account
        self._names = names
        self.is_absent = is_absent
        self._writer = codecs[0] if codecs else None
        self.writes = bool(codecs)
        self._head = _head(codecs[0].id) if codecs else b""
        self._readers = {codec.id: codec for codec in codecs}

    def carried(self) -> Carried:
        """For another process, as plain data: account and names; None: it can't have the codecs."""
        if self._writer is None and not self.is_absent:
            return self._account, []
        return self._account, None if self._names is None else list(self._names)

    def close(self, raw: bytes) -> bytes:
        """A payload as it goes to disk.

        Raises:
            CodecFailed
        """
        if self._writer is None:
            return raw
        return self._head + self.encode(self._writer, raw)

    def open(self, kept: bytes) -> bytes:
        """A payload as it was before.

        Raises:
            CodecMissing: its codec was not named.
            CodecFailed: its codec can't read it.
        """
        if kept[:1] != _MARK:
            return kept
        end = 2 + kept[1]
        codec_id = kept[2:end].decode("ascii", "replace")
        codec = self._readers.get(codec_id)
        if codec is None:
            raise missing(self._account, codec_id)
        return self.decode(codec, kept[end:])

    def encode(self, codec: PayloadCodec, raw: bytes) -> bytes:
        """By one codec; see `close`."""
        return self._ask(codec, "encode", raw)

    def decode(self, codec: PayloadCodec, kept: bytes) -> bytes:
        """By one codec; see `open`."""
        return self._ask(codec, "decode", kept)

    def _ask(self, codec: PayloadCodec, what: str, given: bytes) -> bytes:
        try:
            found = getattr(codec, what)(given)
        except Exception as error:
            raise CodecFailed(
                f"codec {codec.id!r} of account {self._account!r} can't {what} a payload: "
                f"{type(error).__name__}: {error}",
                {"codec": codec.id, "account": self._account},
            ) from None
        if type(found) is not bytes:
            raise CodecFailed(
                f"codec {codec.id!r} of account {self._account!r} gave a {type(found).__name__} "
                f"in {what}(); it must give bytes.",
                {"codec": codec.id, "account": self._account},
            )
        return found


def _head(codec_id: str) -> bytes:
    return _MARK + bytes([len(codec_id)]) + codec_id.encode()


def missing(account: str, codec_id: str) -> CodecMissing:
    """The error that names a codec."""
    return CodecMissing(
        f"account {account!r} has payloads of the codec {codec_id!r}, which was not named. Right: "
        f"`codecs={{{account!r}: [newest, {codec_id}]}}`, the first of which writes.",
        {"codec": codec_id, "account": account},
    )


class Codecs:
    """The codecs of all accounts.

    Args:
        by_account: for each account a codec, or several of which the first one writes.
        names: of those accounts' codecs that other processes find by name.

    Raises:
        InvalidArgument: something is no codec, or does not give back what it was given.
    """

    def __init__(
        self,
        by_account: Mapping[str, PayloadCodec | Sequence[PayloadCodec]] | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._names = dict(names or {})
        self._by_account: dict[str, tuple[PayloadCodec, ...]] = {}
        self._seals: dict[str, Seal] = {}
        for account, given in (by_account or {}).items():
            found = tuple(given) if isinstance(given, (list, tuple)) else (given,)
            for codec in found:
                _check(account, codec)
            if len({codec.id for codec in found}) < len(found):
                raise InvalidArgument(f"two codecs of account {account!r} have the same id.")
            self._by_account[account] = found

    def seal(self, account: str) -> Seal:
        """An account's."""
        seal = self._seals.get(account)
        if seal is None:
            if len(self._seals) >= ACCOUNTS_MAX:
                self._seals.clear()
            seal = Seal(account, self._by_account.get(account, ()), self._names.get(account))
            self._seals[account] = seal
        return seal

    def __iter__(self) -> Iterator[tuple[str, PayloadCodec]]:
        for account, codecs in self._by_account.items():
            for codec in codecs:
                yield account, codec


NO_CODECS = Codecs()


def _check(account: str, codec: object) -> None:
    if not isinstance(codec, PayloadCodec) or isinstance(codec, type):
        raise InvalidArgument(
            f"{shown(codec)} is no codec for account {account!r}. Right: an object with `id`, "
            "`encode(raw: bytes) -> bytes` and `decode(kept: bytes) -> bytes`, such as ZlibCodec()."
        )
    if not isinstance(codec.id, str) or not _ID.match(codec.id):
        raise InvalidArgument(
            f"the codec id {shown(codec.id)} must be 1 to 64 letters, digits, '_', '.' or '-', "
            "such as 'aes-2026'."
        )
    seal = Seal(account, [codec])
    if seal.open(seal.close(SAMPLE)) != SAMPLE:
        raise InvalidArgument(f"codec {codec.id!r} does not give back what it was given.")


def check_sample(seal: Seal, codec: PayloadCodec, kept: bytes, account: str) -> None:
    """Whether a codec is the one that wrote a sample.

    Raises:
        CodecWrong
    """
    try:
        is_same = seal.decode(codec, kept) == SAMPLE
    except CodecFailed:
        is_same = False
    if not is_same:
        raise CodecWrong(
            f"codec {codec.id!r} of account {account!r} is not the one that wrote under that id: "
            "it can't read its own sample. Is it another key? Another key wants another id.",
            {"codec": codec.id, "account": account},
        )
