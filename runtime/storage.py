"""The ordered key-value storage of an entity, and transactions on it.

Keys are strings in the order of their UTF-8 bytes; values are plain data (as MessagePack holds
it: None, bool, int, float, str, bytes, list, dict). Reads see the entity's own pending writes.
The methods are `async` because the port admits stores that wait; over the SQLite store they
never do, so several writes in a row stay in one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from . import limits
from .codec import pack, unpack
from .errors import InvalidArgument, UnencodableValue
from .guarded import shown
from .ids import EntityRef
from .tables import Change, Key, Row, Table

if TYPE_CHECKING:
    from .entity import Context

T = TypeVar("T")

KV = Table(
    "kv",
    (("kind", "TEXT"), ("key", "TEXT"), ("k", "TEXT"), ("v", "BLOB")),
    key_size=3,
    scope_size=2,
)
_DELETED = object()


def _check_key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidArgument(f"a storage key must be a string, not {type(key).__name__}.")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"storage key {shown(key)} holds a lone surrogate.") from None
    if "\x00" in key or not 0 < size <= limits.KV_KEY_BYTES_MAX:
        raise InvalidArgument(
            f"a storage key takes 1 to {limits.KV_KEY_BYTES_MAX} bytes and no NUL; "
            f"{shown(key)} has {size}."
        )
    return key


def _encode(key: str, value: Any) -> bytes:
    try:
        raw = pack(value)
    except (TypeError, NotImplementedError, ValueError, OverflowError, RecursionError) as error:
        raise UnencodableValue(f"the value of storage key {shown(key)}: {error}") from None
    if len(raw) > limits.KV_VALUE_BYTES_MAX:
        raise InvalidArgument(
            f"the value of storage key {shown(key)} takes {len(raw)} bytes; "
            f"at most {limits.KV_VALUE_BYTES_MAX} fit."
        )
    return raw


class Storage:
    """The key-value storage of one entity."""

    def __init__(self, ctx: Context, ref: EntityRef) -> None:
        self._ctx = ctx
        self._prefix = (ref.kind, ref.key)

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        row = self._ctx.get(KV, (*self._prefix, _check_key(key)))
        return default if row is None else unpack(row[3])

    async def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values of those keys that exist."""
        found: dict[str, Any] = {}
        for key in keys:
            row = self._ctx.get(KV, (*self._prefix, _check_key(key)))
            if row is not None:
                found[key] = unpack(row[3])
        return found

    async def put(self, key: str, value: Any) -> None:
        """Set a key."""
        raw = _encode(_check_key(key), value)
        self._ctx.put(KV, (*self._prefix, key, raw))

    async def put_many(self, values: Mapping[str, Any]) -> None:
        """Set several keys in one commit; on a bad one, or without room for all, nothing is set."""
        self._write_all(values)

    def _write_all(self, values: Mapping[str, Any]) -> None:
        if len(values) > limits.BATCH_ROWS_MAX:
            raise InvalidArgument(
                f"{len(values)} storage keys are to be set in one commit; at most "
                f"{limits.BATCH_ROWS_MAX} fit."
            )
        changes: list[Change] = []
        for key, value in values.items():
            address = (*self._prefix, _check_key(key))
            row = None if value is _DELETED else (*address, _encode(key, value))
            changes.append((KV, address, row))
        if changes:
            self._ctx.write_all(changes)

    async def delete(self, key: str) -> bool:
        """Delete a key; True if it was there."""
        address = (*self._prefix, _check_key(key))
        there = self._ctx.get(KV, address) is not None
        if there:
            self._ctx.delete(KV, address)
        return there

    async def delete_all(self) -> None:
        """Delete all keys, and the alarm.

        Up to 10,000 keys go in one commit. More go in parts of as many, each durable before the
        next: what the entity is asked meanwhile finds the keys that are left, and so does whoever
        calls again after a crash.

        Raises:
            Overloaded: the shard's next commit has no room for a part; call it again.
        """
        while keys := self._first_keys(limits.DELETED_TOGETHER_MAX):
            self._ctx.write_all([(KV, key, None) for key in keys])
            if len(keys) < limits.DELETED_TOGETHER_MAX:
                break
            await self._durable()
        self._ctx.delete_alarm()

    def _first_keys(self, count: int) -> list[Key]:
        keys: list[Key] = []
        while len(keys) < count:
            after = keys[-1] if keys else None
            rows = self._ctx.scan(KV, self._prefix, after=after, limit=limits.SCAN_ROWS_MAX)
            keys += [row[:3] for row in rows]
            if len(rows) < limits.SCAN_ROWS_MAX:
                break
        return keys[:count]

    def _durable(self) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ctx.when_durable(lambda: None if done.done() else done.set_result(None))
        return done

    async def list(
        self,
        *,
        prefix: str = "",
        start: str | None = None,
        end: str | None = None,
        limit: int = limits.SCAN_ROWS_MAX,
        reverse: bool = False,
    ) -> dict[str, Any]:
        """Keys that begin with `prefix`, from `start` (inclusive) to `end` (exclusive), in order.

        At most `limit` of them; page with `start`.
        """
        if limit < 1:
            raise InvalidArgument(f"limit must be at least 1, not {limit}.")
        found: dict[str, Any] = {}
        for row in self._rows(prefix, start, end, reverse):
            key = row[2]
            if not key.startswith(prefix) or not _within(key, start, end):
                continue
            found[key] = unpack(row[3])
            if len(found) == limit:
                break
        return found

    def _rows(
        self, prefix: str, start: str | None, end: str | None, reverse: bool
    ) -> Iterator[Row]:
        """Rows from the first that may match, up to the first that is past the range."""
        first = end if reverse else max(prefix, start or "")
        after = None
        if first:
            after = (*self._prefix, first)
            row = None if reverse else self._ctx.get(KV, after)
            if row is not None:
                yield row
        while True:
            rows = self._ctx.scan(
                KV, self._prefix, after=after, limit=limits.SCAN_ROWS_MAX, reverse=reverse
            )
            for row in rows:
                key = row[2]
                if reverse and key < max(prefix, start or ""):
                    return
                if not reverse and (key > prefix and not key.startswith(prefix)):
                    return
                yield row
            if len(rows) < limits.SCAN_ROWS_MAX:
                return
            after = rows[-1][:3]

    async def transaction(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work(txn)`; its writes are made together at its end, or not at all if it raises.

        Raises:
            InvalidArgument: a key that `work` read was changed by another event meanwhile
                (`work` awaited something other than storage); nothing was written.
        """
        txn = Transaction(self)
        result = await work(txn)
        await txn.apply()
        return result


def _within(key: str, start: str | None, end: str | None) -> bool:
    return (start is None or key >= start) and (end is None or key < end)


class Transaction:
    """Reads and buffered writes of one `Storage.transaction`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._writes: dict[str, Any] = {}
        self._reads: dict[str, bytes] = {}

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of a key as this transaction sees it."""
        if key in self._writes:
            value = self._writes[key]
            return default if value is _DELETED else value
        value = await self._storage.get(key, _DELETED)
        self._reads.setdefault(key, b"" if value is _DELETED else pack(value))
        return default if value is _DELETED else value

    async def put(self, key: str, value: Any) -> None:
        """Set a key at the end of the transaction."""
        self._writes[_check_key(key)] = unpack(_encode(key, value))

    async def delete(self, key: str) -> None:
        """Delete a key at the end of the transaction."""
        self._writes[_check_key(key)] = _DELETED

    def rollback(self) -> None:
        """Forget all writes made so far."""
        self._writes.clear()

    async def apply(self) -> None:
        """Make the writes, if what was read still stands."""
        for key, seen in self._reads.items():
            value = await self._storage.get(key, _DELETED)
            if (b"" if value is _DELETED else pack(value)) != seen:
                raise InvalidArgument(
                    f"storage key {shown(key)} was changed by another event during the "
                    "transaction; run it again, or use block_concurrency_while."
                )
        self._storage._write_all(self._writes)
