"""Looks whether a store has all that it acknowledged, before a byte of it is changed.

Its chain is read through a read-only connection, which never checkpoints: a store that is refused
keeps its log as it is, for whoever wants to save what is in it. An operator may accept the loss;
that is recorded in the store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .chain import (
    LINEAGE_BYTES,
    NOTHING_CLAIMED,
    Chain,
    Claim,
    Link,
    Opening,
    link_from,
    mismatch_of_parts,
    missing_from,
    shortage_of,
)
from .errors import InvalidArgument, StoreFailed, StoreStale
from .high_water import MarkDamaged, make_mark, mark_path, read_mark
from .opening_sqlite import begin_lineage
from .pages import Pages
from .pages_sqlite import changing, damage_of, standing
from .schema_sqlite import (
    APPLICATION_ID,
    CHAIN_FORMAT,
    STORE_FORMAT,
    SUMS_FORMAT,
    connect_reader,
    connect_writer,
)


class Fault(NamedTuple):
    """What a store lacks.

    Attributes:
        why: for people.
        can_go_on: it is in order but for that, so the loss may be accepted.
        is_damage: it is damaged, and not older.
    """

    why: str
    can_go_on: bool = True
    is_damage: bool = False


@contextmanager
def looked_at(path: Path) -> Iterator[None]:
    """Refuse a store that lacks what its mark claims; keep it open for reading meanwhile, so that
    its log need not be recovered twice.

    Raises:
        StoreStale: it does, or nobody can tell.
        StoreFailed: its mark can't be read.
    """
    claim, fault = _claim_of(path)  # before the store, which may go on meanwhile
    if not path.exists() or path.stat().st_size == 0:
        if fault is not None or (claim is not None and claim.epoch):
            raise _stale(path, Fault("the file is gone or empty", False))
        yield
        return
    journal = Path(f"{path}-journal")
    if journal.exists() and journal.stat().st_size:  # only a writer can open it
        if claim is not None and claim.epoch:
            why = f"{journal.name} is beside it, which is none of its files: move it away"
            raise _stale(path, Fault(why, False))
        yield  # it was being made, and holds nothing yet
        return
    with closing(connect_reader(path)) as connection:
        if fault is None and claim is None and mark_path(path).exists():
            claim, fault = _claim_of(path)  # somebody has made both meanwhile
        fault = fault or fault_of(path, connection, claim)
        if fault is not None:
            raise _stale(path, fault)
        yield


def look(path: Path) -> Fault | None:
    """What a store lacks; None: nothing, or it is no store. It must be there.

    Raises:
        StoreFailed: its mark can't be read.
        sqlite3.DatabaseError: the store can't.
    """
    claim, fault = _claim_of(path)
    if fault is not None:
        return fault
    with closing(connect_reader(path)) as connection:
        return fault_of(path, connection, claim) or _damage(path, connection)


def _damage(path: Path, connection: sqlite3.Connection) -> Fault | None:
    """Whether a store without other faults has damaged pages."""
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master").fetchall()}
    if "shard" not in names:
        return None
    (number,) = connection.execute("SELECT format FROM shard").fetchone() or (0,)
    why = damage_of(path, connection) if SUMS_FORMAT <= number <= STORE_FORMAT else None
    return None if why is None else Fault(why, is_damage=True)


def accept_loss(path: Path, lineage: bytes, now_ms: int) -> str:
    """Let a store go on without what it lacks; what that is, is kept in it, and returned.

    Args:
        path: the store; nobody else may have it open.
        lineage: a new one.
        now_ms: the time of day.

    Raises:
        InvalidArgument: it lacks nothing, or it could not go on.
    """
    claim, fault = _claim_of(path)
    with closing(connect_reader(path)) as connection:
        fault = fault or fault_of(path, connection, claim) or _damage(path, connection)
        number = connection.execute("SELECT format FROM shard").fetchone()[0]
    if fault is None:
        raise InvalidArgument(f"{path.name} lacks nothing; there is no loss to accept.")
    if not fault.can_go_on:
        raise InvalidArgument(f"{path.name} can't go on as it is: {fault.why}.")
    if number < CHAIN_FORMAT:
        make_mark(path)  # the next opening upgrades it, and claims what it has
        return fault.why
    if number >= SUMS_FORMAT:
        _make_sums(path)
    with changing(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "UPDATE shard SET epoch = max(epoch, ?)", ((claim or NOTHING_CLAIMED)[0],)
        )
        prepared = begin_lineage(connection, path, lineage)
        connection.execute(
            "INSERT INTO shard_losses VALUES (?, ?, ?)", (prepared.claim.epoch, now_ms, fault.why)
        )
        connection.execute("COMMIT")
    make_mark(path, prepared.claim)
    return fault.why


def _make_sums(path: Path) -> None:
    """Make the checksums anew, from what there is."""
    with closing(Pages(path)) as pages, closing(connect_reader(path)) as reader:
        standing(reader)  # its log is not copied when the other one closes
        with closing(connect_writer(path, "FULL")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            pages.make(*standing(connection))
            connection.execute("ROLLBACK")


def _claim_of(path: Path) -> tuple[Claim | None, Fault | None]:
    try:
        return read_mark(path), None
    except MarkDamaged as error:
        return None, Fault(str(error))
    except OSError as error:
        raise StoreFailed(f"{mark_path(path)} can't be read: {error.strerror}.") from error


def fault_of(path: Path, connection: sqlite3.Connection, claim: Claim | None) -> Fault | None:
    """What is wrong with the chain of a store; None: nothing, or it is no store of ours.

    Args:
        path, connection: the store.
        claim: what its mark claims; None: it has none.
    """
    connection.execute("BEGIN")
    try:
        return _fault(path, connection, claim)
    finally:
        connection.execute("ROLLBACK")


def _fault(path: Path, connection: sqlite3.Connection, claim: Claim | None) -> Fault | None:
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master").fetchall()}
    if not names and claim is not None and claim.epoch:
        return Fault("it holds nothing", False)
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    if mark != APPLICATION_ID or "shard" not in names:
        return None
    number, commit, kept = connection.execute(
        "SELECT format, commit_seq, chain FROM shard"
    ).fetchone() or (0, 0, None)
    if not 0 < number <= STORE_FORMAT:
        return None
    if number < CHAIN_FORMAT:
        if claim is None or not claim.epoch:
            return None
        return Fault(
            f"commit {claim.commit} was acknowledged in a newer format than {number}, which the "
            "store has: it is an older copy"
        )
    link, openings = link_from(kept), _openings(connection)
    if link is None or not openings or openings[-1].lineage != link.lineage:
        return Fault("it does not know its own past: it is damaged", False)
    chain = Chain(commit, link, openings)
    why = shortage_of(link, path.stat().st_size)
    if why is not None:
        return Fault(why, False)
    with suppress(_Torn):
        why = mismatch_of_parts(chain, _main_alone(path))
    if why is not None:
        return Fault(f"{why}. To go on from the main file alone, move {path.name}-wal away", False)
    if claim is None:
        return Fault(f"{mark_path(path).name} is gone, so nobody can tell whether it is the newest")
    why = missing_from(chain, claim)
    return None if why is None else Fault(why)


def _openings(connection: sqlite3.Connection) -> list[Opening]:
    rows = connection.execute("SELECT epoch, chain, after FROM shard_openings ORDER BY epoch")
    return [Opening(*row) for row in rows.fetchall()]


class _Torn(Exception):
    """A page that was being written is torn in the main file; the log has it whole."""


def _main_alone(path: Path) -> tuple[int, Link] | None:
    """The last commit and its link in the main file, as if it had no log; None: there is none.

    Raises:
        _Torn: nothing can be told.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        try:
            row = connection.execute("SELECT commit_seq, chain FROM shard").fetchone()
        except sqlite3.OperationalError:
            return None  # it has no such table yet
        except (sqlite3.DatabaseError, UnicodeError):
            raise _Torn from None
    if row is None or not isinstance(row[0], int):
        raise _Torn
    if row[1] is None:
        return row[0], Link(bytes(LINEAGE_BYTES), 0, 0)  # of the format before chains
    link = link_from(row[1])
    if link is None:
        raise _Torn
    return row[0], link


def _stale(path: Path, fault: Fault) -> StoreStale:
    shard = path.stem
    accept = (
        f"; or go on without what is lost: toque doctor --data DIR --accept-loss {shard}"
        if fault.can_go_on
        else ""
    )
    return StoreStale(
        f"{path} is not all that was acknowledged: {fault.why}. It is left as it is. Put back the "
        f"newest files, or the whole directory from one backup{accept}.",
        {"shard": shard, "reason": fault.why},
    )
