"""What the cut-over hands from V1 to V2, and how each entity that takes part keeps its plane.

A `PlaneBook` is an entity's one row on the matter: its plane, which migration put it there, and
which migrations were given up, whose late messages change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from ..runtime import limits
from ..runtime.entity import Context
from ..runtime.tables import Row, Table
from .planes import Plane, PlaneInfo, StaleMigration


class Frozen(msgspec.Struct, array_like=True, frozen=True):
    """What AccountOld froze: all that Gatekeeper and Account are made of.

    Attributes:
        migration_id: by whom.
        at_ms: when.
        lease_version: of its lease on V2, the first.
        holding: slots in use or granted; the lease.
        queued, waiting, paused, unborn: how many of each there are.
        running_max: the account's limit.
        workflows: how many workflows have instances that have not ended, as far as a weight
            goes; at least 1: the lease's weight.
        target: how many slots AccountOld may hold; less than it holds if its limit was lowered;
            -1: as many as it holds.
    """

    migration_id: str
    at_ms: int
    lease_version: int
    holding: int
    queued: int
    waiting: int
    paused: int
    unborn: int
    running_max: int
    workflows: int = 1
    target: int = -1


class RegistryPart(msgspec.Struct, array_like=True, frozen=True):
    """Rows of the registry on their way from AccountOld to Account.

    Attributes:
        table: the table's name.
        rows: without the entity's column; plain values.
        after: asks for the next part; None: that was the last.
    """

    table: str
    rows: list[list[Any]]
    after: str | None


def plane_table(name: str) -> Table:
    """The table of a `PlaneBook`: one for each kind, since keys of two kinds may be the same."""
    return Table(
        name,
        (
            ("entity", "TEXT"),
            ("plane", "TEXT"),
            ("migration_id", "TEXT"),
            ("healing", "INTEGER"),
            ("from_v1", "INTEGER"),
            ("rows", "INTEGER"),
            ("aborted", "TEXT"),
        ),
        key_size=1,
    )


NO_ROWS, SOME_ROWS, ALL_ROWS = 0, 1, 2
"""How much of the registry has come over."""


class _State(msgspec.Struct, frozen=True):
    plane: Plane = "v2"
    migration_id: str = ""
    healing: bool = False
    from_v1: bool = False
    rows: int = NO_ROWS
    aborted: str = ""


class PlaneBook:
    """An entity's plane, durable. Without a row the account was made on V2.

    Args:
        ctx: the entity's context.
        table: see `plane_table`.
    """

    def __init__(self, ctx: Context, table: Table) -> None:
        self._ctx = ctx
        self._table = table
        row = ctx.get(table, (ctx.ref.key,))
        self.state = _State() if row is None else _state_of(row)

    @property
    def info(self) -> PlaneInfo:
        """As front ends are told."""
        state = self.state
        return PlaneInfo(state.plane, state.healing, state.from_v1)

    def write(self, **changes: Any) -> None:
        """Change the row; see `_State`."""
        state = msgspec.structs.replace(self.state, **changes)
        self._ctx.put(
            self._table,
            (
                self._ctx.ref.key,
                state.plane,
                state.migration_id,
                int(state.healing),
                int(state.from_v1),
                state.rows,
                state.aborted,
            ),
        )
        self.state = state

    def is_adopted_by(self, migration_id: str, *, may_be_new: bool = False) -> bool:
        """Whether that migration brought the entity to V2; that it says so again is harmless.

        Args:
            migration_id: of the migration.
            may_be_new: the entity may not have heard yet that the account is on V1.

        Raises:
            StaleMigration: it was given up, or the entity is on V2 by another way.
        """
        self.check(migration_id)
        state = self.state
        if state.plane != "v2":
            return False
        if state.migration_id != migration_id:
            if state.migration_id or not may_be_new:
                self._refuse(migration_id, "the account is on V2 already")
            return False
        return True

    def check(self, migration_id: str) -> None:
        """Refuse what a migration says that was given up (`StaleMigration`)."""
        if migration_id <= self.state.aborted:
            self._refuse(migration_id, "it, or a later one, was aborted")

    def check_current(self, migration_id: str) -> None:
        """Refuse what any migration says but the one that brought the entity to V2."""
        self.check(migration_id)
        if self.state.plane != "v2" or self.state.migration_id != migration_id:
            self._refuse(migration_id, "it is not the one that moved the account")

    def give_up(self, given_up: str, **changes: Any) -> None:
        """Note that a migration was given up; and change the row."""
        self.write(aborted=max(given_up, self.state.aborted), **changes)

    def _refuse(self, migration_id: str, why: str) -> None:
        account = self._ctx.ref.key.split("/", 1)[0]
        raise StaleMigration(
            f"migration {migration_id!r:.80} of account {account!r} can't go on: {why}.",
            {"account": account, "migration_id": migration_id, "reason": why},
        )


def _state_of(row: Row) -> _State:
    _, plane, migration_id, healing, from_v1, rows, aborted = row
    return _State(plane, migration_id, bool(healing), bool(from_v1), rows, aborted)


# --- rows of the registry -------------------------------------------------------------------


def read_part(ctx: Context, tables: Sequence[Table], after: str | None) -> RegistryPart:
    """The next rows of an entity's registry.

    Args:
        ctx: whose.
        tables: all that the registry has, in an order that stays.
        after: as the part before told; None: from the first.
    """
    place, known = msgspec.json.decode(after, type=tuple[int, list[Any]]) if after else (0, [])
    table, own = tables[place], ctx.ref.key
    last = (own, *known) if known else None
    most = limits.REGISTRY_PART_ROWS_MAX
    rows = ctx.scan(table, (own,), after=last, limit=most)
    told = [list(row[1:]) for row in rows]
    if len(rows) == most:
        step = (place, told[-1][: table.key_size - 1])
    elif place + 1 < len(tables):
        step = (place + 1, [])
    else:
        return RegistryPart(table.name, told, None)
    return RegistryPart(table.name, told, msgspec.json.encode(step).decode())


def write_part(ctx: Context, tables: Sequence[Table], part: RegistryPart) -> None:
    """Make rows of another entity's registry this one's."""
    table = next(table for table in tables if table.name == part.table)
    for row in part.rows:
        ctx.put(table, (ctx.ref.key, *row))


async def clear_rows(ctx: Context, tables: Sequence[Table]) -> None:
    """Delete all rows of an entity in some tables: a few in each commit."""
    for table in tables:
        while rows := ctx.scan(table, (ctx.ref.key,), limit=limits.SCAN_ROWS_MAX):
            for row in rows:
                ctx.delete(table, table.key_of(row))
            await durable(ctx)


async def durable(ctx: Context) -> None:
    """Wait until all that the entity has written is on disk."""
    done = asyncio.Event()
    ctx.when_durable(done.set)
    await done.wait()
