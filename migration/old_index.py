"""AccountOld's index: a row for each instance of the account, as V1 has it. Pure over its rows.

V1 keeps two stores that may disagree: this one says which instances there are, and Engines say
how they stand, by reports that come later. An instance is *unborn* from its create on until its
Engine is known to be there. After the move to V2 the index still tells which instances came from
V1 and when the last of them goes.

Each change of an instance writes all its rows, or none: INDEX, UNBORN (the create, for who is
unborn, oldest first), ENDS (who has ended, by when it goes) and COUNTS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from ..engines.ports import StatusReport
from ..engines.status import FINISHED
from ..engines.views import CreateRequest, InstanceView
from ..runtime import limits
from ..runtime.codec import pack, unpack
from ..runtime.ids import split_engine_key
from ..runtime.payload_codec import Seal
from ..runtime.tables import Change, Key, Row, Scanned, Table, every_row
from .old_rows import COUNTS, ENDS, INDEX, UNBORN, UNBORN_COUNT, Entry, entry_of


class Rows(Scanned, Protocol):
    """The part of an entity's context that the index uses."""

    def write_all(self, changes: Iterable[Change]) -> None:
        """Write and delete rows: all or none."""

    def get(self, table: Table, key: Key) -> Row | None:
        """A row, own pending writes included."""


class OldIndex:
    """See the module.

    Args:
        rows: the store.
        entity: AccountOld's key.
        seal: what the account's payloads go through on their way to disk.
    """

    def __init__(self, rows: Rows, entity: str, seal: Seal) -> None:
        self._rows = rows
        self._entity = entity
        self._seal = seal
        self._counts: dict[str, dict[str, int]] = {
            uuid: msgspec.json.decode(text, type=dict[str, int])
            for _, uuid, text in every_row(rows, COUNTS, (entity,))
        }

    # --- what it knows ----------------------------------------------------------------------

    def get(self, key: str) -> Entry | None:
        """The instance with that Engine's key."""
        _, uuid, instance_id = split_engine_key(key)
        row = self._rows.get(INDEX, (self._entity, uuid, instance_id))
        return None if row is None else entry_of(row)

    def counts(self, uuid: str) -> dict[str, int]:
        """A workflow's instances by status; the unborn are queued."""
        found = dict(self._counts.get(uuid, {}))
        unborn = found.pop(UNBORN_COUNT, 0)
        if unborn:
            found["queued"] = found.get("queued", 0) + unborn
        return found

    def unborn_of(self, uuid: str) -> int:
        """How many of a workflow are unborn."""
        return self._counts.get(uuid, {}).get(UNBORN_COUNT, 0)

    @property
    def unborn(self) -> int:
        """How many are unborn."""
        return sum(counts.get(UNBORN_COUNT, 0) for counts in self._counts.values())

    @property
    def ended(self) -> int:
        """How many have ended and are still kept."""
        return sum(counts.get(status, 0) for counts in self._counts.values() for status in FINISHED)

    @property
    def size(self) -> int:
        """How many there are."""
        return sum(map(sum, (counts.values() for counts in self._counts.values())))

    @property
    def workflows(self) -> int:
        """How many workflows have instances that have not ended."""
        return sum(not FINISHED.issuperset(counts) for counts in self._counts.values())

    @property
    def weight(self) -> int:
        """What its lease weighs on V2: as much as so many workflows."""
        return max(1, min(self.workflows, limits.WORKFLOW_WEIGHT_MAX))

    @property
    def next_end_ms(self) -> int | None:
        """When the first of the ended goes."""
        rows = self._rows.scan(ENDS, (self._entity,), limit=1)
        return rows[0][1] if rows else None

    @property
    def last_end_ms(self) -> int:
        """When the retention of the last of the ended is over; 0: none has ended."""
        rows = self._rows.scan(ENDS, (self._entity,), limit=1, reverse=True)
        return rows[0][1] - limits.V1_ID_LINGER_MS if rows else 0

    def unborn_page(self, after: Key | None, limit: int) -> list[tuple[Key, str]]:
        """Unborn instances, oldest first: where each stands, and its Engine's key."""
        account = self._entity.split("/", 1)[0]
        rows = self._rows.scan(UNBORN, (self._entity,), after=after, limit=limit)
        return [(row[:4], f"{account}/{row[2]}/{row[3]}") for row in rows]

    def request_of(self, entry: Entry) -> CreateRequest:
        """What the Engine of an unborn instance is to be told."""
        row = self._rows.get(UNBORN, _place(self._entity, entry))
        assert row is not None, f"{entry.id} is unborn without its create"
        return unpack(self._seal.open(row[4]), CreateRequest)

    # --- changes ----------------------------------------------------------------------------

    def add(self, entry: Entry, request: CreateRequest) -> None:
        """An instance is created, or takes the place of one that is gone."""
        kept = self._seal.close(pack(request))
        old = self._rows.get(INDEX, (self._entity, entry.uuid, entry.id))
        self._change(None if old is None else entry_of(old), entry, kept)

    def born(self, key: str, view: InstanceView | None = None) -> None:
        """The instance's Engine is there.

        Args:
            key: the Engine's.
            view: as it stands; None: another create made it, and its reports will tell.
        """
        entry = self.get(key)
        if entry is None or not entry.unborn:
            return
        if view is None:
            self._change(entry, msgspec.structs.replace(entry, unborn=False, run_id=""))
            return
        since_ms = max(entry.modified_ms, view.modified_ms)
        started_ms = view.started_ms
        self._stands(entry, view.status, since_ms, view.run_id, entry.seq, started_ms)

    def drop(self, key: str) -> None:
        """There is no such instance."""
        entry = self.get(key)
        if entry is not None:
            self._change(entry, None)

    def started(self, key: str, run_id: str, now_ms: int) -> None:
        """An Engine has taken its slot."""
        entry = self.get(key)
        if entry is None or entry.unborn or entry.run_id != run_id:
            return
        if entry.status not in ("queued", "waiting"):
            return
        at_ms = entry.started_ms or now_ms
        self._change(entry, msgspec.structs.replace(entry, status="running", started_ms=at_ms))

    def on_reports(self, reports: Iterable[StatusReport]) -> None:
        """Engines say how they stand; late and repeated reports change nothing."""
        for report in reports:
            entry = self.get(report.key)
            if entry is not None:
                self._on_report(entry, report)

    def _on_report(self, entry: Entry, report: StatusReport) -> None:
        if report.run_id == entry.run_id:
            if report.seq <= entry.seq:
                return
        elif report.since_ms < entry.modified_ms:
            return
        elif entry.unborn and report.state == "ended":
            return  # of an instance that had the id before, by another clock
        status = report.status
        if report.state == "ended" and status not in FINISHED:
            self._change(entry, None)  # it was deleted
            return
        started_ms = entry.started_ms if report.run_id == entry.run_id else None
        if started_ms is None and status not in FINISHED and status != "queued":
            started_ms = report.since_ms
        self._stands(entry, status, report.since_ms, report.run_id, report.seq, started_ms)

    def _stands(
        self,
        entry: Entry,
        status: str,
        since_ms: int,
        run_id: str,
        seq: int,
        started_ms: int | None,
    ) -> None:
        """It is known to stand so; it is born."""
        ended_ms, expires_ms = None, 0
        if status in FINISHED:
            kept_ms = entry.success_ms if status == "complete" else entry.other_ms
            ended_ms, expires_ms = since_ms, since_ms + kept_ms + limits.V1_ID_LINGER_MS
        self._change(
            entry,
            msgspec.structs.replace(
                entry,
                status=status,
                started_ms=started_ms,
                ended_ms=ended_ms,
                modified_ms=since_ms,
                unborn=False,
                run_id=run_id,
                seq=seq,
                expires_ms=expires_ms,
            ),
        )

    def sweep(self, now_ms: int) -> None:
        """Drop the next of those whose retention is over."""
        account = self._entity.split("/", 1)[0]
        for row in self._rows.scan(ENDS, (self._entity,), limit=limits.V1_EXPIRED_PER_SWEEP_MAX):
            _, expires_ms, uuid, instance_id = row
            if expires_ms > now_ms:
                break
            self.drop(f"{account}/{uuid}/{instance_id}")

    def _change(self, old: Entry | None, new: Entry | None, request: bytes = b"") -> None:
        """Write all rows of an instance, and the workflow's counts."""
        some = new or old
        assert some is not None, "nothing to change"
        counts = dict(self._counts.get(some.uuid, {}))
        if old is not None:
            _count(counts, old.counted, -1)
        if new is not None:
            _count(counts, new.counted, 1)
        self._rows.write_all(self._rows_of(old, new, request, some.uuid, counts))
        if counts:
            self._counts[some.uuid] = counts
        else:
            self._counts.pop(some.uuid, None)

    def _rows_of(
        self,
        old: Entry | None,
        new: Entry | None,
        request: bytes,
        uuid: str,
        counts: dict[str, int],
    ) -> Iterator[Change]:
        entity = self._entity
        if old is not None and old.unborn:
            yield UNBORN, _place(entity, old), None
        if old is not None and old.expires_ms:
            yield ENDS, (entity, old.expires_ms, uuid, old.id), None
        if new is None:
            assert old is not None, "nothing to delete"
            yield INDEX, (entity, uuid, old.id), None
        else:
            row = (entity, *msgspec.structs.astuple(new))
            yield INDEX, row[:3], tuple(map(_plain, row))
            if new.unborn:
                place = _place(entity, new)
                yield UNBORN, place, (*place, request)
            if new.expires_ms:
                end = (entity, new.expires_ms, uuid, new.id)
                yield ENDS, end, end
        text = msgspec.json.encode(counts).decode()
        yield COUNTS, (entity, uuid), (entity, uuid, text) if counts else None


def _plain(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _place(entity: str, entry: Entry) -> Key:
    return entity, entry.created_ms, entry.uuid, entry.id


def _count(counts: dict[str, int], status: str, by: int) -> None:
    left = counts.get(status, 0) + by
    if left:
        counts[status] = left
    else:
        counts.pop(status, None)
