"""Lists over all parts of the index: a keyset merge, opaque cursors, and pages by number.

A cursor is a position `(created_ms, id)` bound to account, workflow, filters and direction: with
it each instance is shown exactly once, however many are created meanwhile. A cursor that was
tampered with, or comes from another list, is refused.

With `prefix` a list holds the ids that begin with it, in the order of ids, and costs what it shows.

A page by number is found by walking from the nearest known position (the ends of recently served
pages are kept, so asking for page after page does not walk), bounded by `PAGE_WALK_ROWS_MAX` rows.
If a cursor comes along, it says where page 1 begins. That is what Cloudflare's SDK needs: given a
cursor it sends the same one again with page=2, 3, ... until a page is empty.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
from collections import OrderedDict
from hashlib import blake2b
from itertools import islice

import msgspec

from ..engines.views import IndexRow, PageRequest
from ..runtime import limits
from ..runtime.codec import pack
from ..runtime.errors import InvalidArgument
from ..runtime.ids import check_id_prefix, check_instance_id
from .calls import Caller
from .index import Index

STATUSES = (
    "queued",
    "running",
    "waiting",
    "paused",
    "waitingForPause",
    "rollingBack",
    "complete",
    "errored",
    "terminated",
)
FINAL_STATUSES = frozenset({"complete", "errored", "terminated"})
Position = tuple[int, str]
_CURSOR_VERSION = 1
_CURSOR_CHARS_MAX = 1024


class ListQuery(msgspec.Struct, frozen=True):
    """What is listed, and which part of it.

    Attributes:
        statuses: only these; empty: all.
        since_ms, until_ms: bounds on the creation time (inclusive, exclusive).
        newest_first: direction.
        per_page: rows of a page.
        page: number of the page, from 1, counted from the cursor if there is one.
        cursor: from an earlier page.
        prefix: only ids that begin with it, in the order of ids instead of creation.
    """

    statuses: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    newest_first: bool = True
    per_page: int = limits.PER_PAGE_DEFAULT
    page: int | None = None
    cursor: str | None = None
    prefix: str = ""

    def check(self) -> None:
        """Refuse what is out of range (`InvalidArgument`)."""
        unknown = [status for status in self.statuses if status not in STATUSES]
        if unknown:
            raise InvalidArgument(
                f"status {unknown[0]!r:.80} is not known; use one of {', '.join(STATUSES)}.",
                {"known": list(STATUSES)},
            )
        if not 1 <= self.per_page <= limits.PER_PAGE_MAX:
            raise InvalidArgument(f"per_page must be 1 to {limits.PER_PAGE_MAX}.")
        if self.page is not None and not 1 <= self.page < 2**53:
            raise InvalidArgument("page must be 1 or more.")
        if self.prefix:
            check_id_prefix(self.prefix)


class InstancePage(msgspec.Struct, frozen=True):
    """A page of a list.

    Attributes:
        rows: its rows.
        page, per_page: which page it is.
        more: whether rows follow.
        total: how many the list had when its first page was made; None if this is the first.
        scope: what a cursor of this list is bound to.
    """

    rows: list[IndexRow]
    page: int
    per_page: int
    more: bool
    total: int | None
    scope: bytes

    def cursor(self, total: int) -> str | None:
        """The cursor to the next page; None at the end."""
        if not self.more:
            return None
        last = self.rows[-1]
        return encode_cursor(self.scope, (last.created_ms, last.id), self.page + 1, total)


class _Cursor(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    version: int
    seal: bytes
    created_ms: int
    id: str
    page: int
    total: int


_cursor_decoder = msgspec.msgpack.Decoder(_Cursor)


def _seal(scope: bytes, created_ms: int, instance_id: str, page: int, total: int) -> bytes:
    content = pack((scope, created_ms, instance_id, page, total))
    return blake2b(content, digest_size=12, person=b"toque-cursor").digest()


def encode_cursor(scope: bytes, position: Position, page: int, total: int) -> str:
    """An opaque cursor to what follows `position`; it is the start of page `page`."""
    fields = (*position, page, total)
    raw = pack((_CURSOR_VERSION, _seal(scope, *fields), *fields))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_cursor(scope: bytes, text: str) -> tuple[Position, int, int]:
    """`(position, page, total)` of a cursor of this very list, or `InvalidArgument`."""
    refused = InvalidArgument(
        "cursor is not valid for this list; use result_info.cursor of a page of the same "
        "workflow, filters and direction, or leave it out to start again. (With a cursor, page "
        "counts from where the cursor points.)"
    )
    if len(text) > _CURSOR_CHARS_MAX:
        raise refused
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = _cursor_decoder.decode(raw)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise refused from None
    expected = _seal(scope, cursor.created_ms, cursor.id, cursor.page, cursor.total)
    if cursor.version != _CURSOR_VERSION or cursor.seal != expected or cursor.page < 2:
        raise refused
    check_instance_id(cursor.id)
    return (cursor.created_ms, cursor.id), cursor.page, cursor.total


class _Positions:
    """Where recently served pages ended, by list and page number. Bounded; forgets with time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[bytes, int], tuple[float, Position]] = OrderedDict()

    def note(self, walk: bytes, page: int, end: Position, now: float) -> None:
        self._kept[walk, page] = (now, end)
        self._kept.move_to_end((walk, page))
        if len(self._kept) > limits.PAGE_POSITIONS_MAX:
            self._kept.popitem(last=False)

    def end_of(self, walk: bytes, page: int, now: float) -> Position | None:
        kept = self._kept.get((walk, page))
        if kept is None or now - kept[0] > limits.PAGE_POSITION_KEPT_MS / 1000:
            return None
        return kept[1]


def _by_creation(row: IndexRow) -> tuple[int, str]:
    return row.created_ms, row.id


def _by_id(row: IndexRow) -> tuple[int, str]:
    return 0, row.id


class Lister:
    """Lists instances over all parts of the index.

    Args:
        caller: says how long it may take.
        index: what is listed.
    """

    def __init__(self, caller: Caller, index: Index) -> None:
        self._caller = caller
        self._index = index
        self._positions = _Positions()

    async def page(self, account: str, workflow_uuid: str, query: ListQuery) -> InstancePage:
        """One page, newest or oldest first by creation."""
        query.check()
        deadline = self._caller.deadline()
        now = asyncio.get_running_loop().time()
        filters = (sorted(query.statuses), query.since_ms, query.until_ms, query.newest_first)
        scope = pack((account, workflow_uuid, filters, *([query.prefix] * bool(query.prefix))))
        base = PageRequest(
            account,
            workflow_uuid,
            None,
            query.newest_first,
            query.per_page,
            sorted(set(query.statuses)),
            query.since_ms,
            query.until_ms,
            query.prefix,
        )
        after: Position | None = None
        total: int | None = None
        at = 1
        if query.cursor:
            after, at, total = decode_cursor(scope, query.cursor)
        wanted = at + (query.page or 1) - 1
        walk = pack((scope, query.per_page, query.cursor))
        if wanted > at:
            known = self._positions.end_of(walk, wanted - 1, now)
            if known is None:
                known = await self._walk(deadline, base, after, (wanted - at) * query.per_page)
                if known is None:
                    return InstancePage([], wanted, query.per_page, False, total, scope)
            after = known
        rows = await self._merged(deadline, base, after, query.per_page + 1)
        more = len(rows) > query.per_page
        del rows[query.per_page :]
        if rows:
            self._positions.note(walk, wanted, (rows[-1].created_ms, rows[-1].id), now)
        return InstancePage(rows, wanted, query.per_page, more, total, scope)

    async def _walk(
        self, deadline: float, base: PageRequest, after: Position | None, rows_left: int
    ) -> Position | None:
        """The position `rows_left` rows on, or None if the list ends before or right there."""
        walked = 0
        while rows_left > 0:
            if walked >= limits.PAGE_WALK_ROWS_MAX:
                raise InvalidArgument(
                    f"that page lies more than {limits.PAGE_WALK_ROWS_MAX} rows in; "
                    "follow result_info.cursor instead."
                )
            limit = min(rows_left, limits.LIST_PAGE_ROWS_MAX)
            rows = await self._merged(deadline, base, after, limit)
            if len(rows) < limit:
                return None
            after = (rows[-1].created_ms, rows[-1].id)
            rows_left -= limit
            walked += limit
        return after

    async def _merged(
        self, deadline: float, base: PageRequest, after: Position | None, limit: int
    ) -> list[IndexRow]:
        request = msgspec.structs.replace(base, after=after, limit=limit)
        pages = await self._index.rows(deadline, request)
        if len(pages) == 1:
            return pages[0][:limit]
        key = _by_id if base.prefix else _by_creation
        merged = heapq.merge(*pages, key=key, reverse=base.newest_first)
        return list(islice(merged, limit))
