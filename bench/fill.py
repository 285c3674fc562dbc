"""Fills a stopped data directory with copies of one waiting instance: a million in a minute or two.

The first of them are made through the API, by the server; what it wrote (its own row, its records,
its alarm, its SousChef's rows) is written again under other ids, with run ids of their own, in the
shards where those ids live. So the stores hold what they would hold after so many creates.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from toque.engines.journal import Instance, record_from_row
from toque.engines.ports import ENGINE_KIND, SOUSCHEF_KIND
from toque.runtime.datadir import DataDir, store_path
from toque.runtime.ids import EntityRef, Placement, engine_key, split_engine_key
from toque.runtime.pages_sqlite import changing

_ROWS_PER_COMMIT = 20_000


class Model(NamedTuple):
    """What is copied: an instance and all its rows."""

    account: str
    workflow_uuid: str
    instance: Instance
    row: tuple[Any, ...]
    steps: list[tuple[Any, ...]]
    parked: tuple[Any, ...]
    order: tuple[Any, ...] | None


def fill(data: Path, workflow: str, count: int, due_ms: int | None = None) -> None:
    """Make `count` copies, named `w0`, `w1`, ..., of a waiting instance of a workflow.

    Args:
        data: the directory; nobody may have it open.
        workflow: at least one of its instances waits, of each of its SousChefs.
        count: how many.
        due_ms: when they are to wake; None: as the first one.
    """
    directory = DataDir.open(data, created_ms=0)
    placement = directory.placement
    with contextlib.ExitStack() as stack:
        stack.callback(directory.close)
        stores = {
            name: stack.enter_context(changing(store_path(data, name), "OFF"))
            for name in placement.names()
        }
        model = _model(stores, placement, workflow)
        _copy(stores, placement, model, count, due_ms)


def _model(stores: dict[str, sqlite3.Connection], placement: Placement, workflow: str) -> Model:
    for name in placement.data_names():
        store = stores[name]
        for row in store.execute("SELECT * FROM instances WHERE status = 'waiting'"):
            instance = Instance.from_row(row)
            if instance.workflow != workflow:
                continue
            account, workflow_uuid, _ = split_engine_key(row[0])
            chef = f"{account}/{workflow_uuid}/{instance.souschef}"
            control = stores[placement.shard_of(EntityRef(SOUSCHEF_KIND, chef))]
            steps = store.execute("SELECT * FROM steps WHERE entity = ?", row[:1]).fetchall()
            key = "WHERE entity = ? AND key = ?"
            parked = control.execute(f"SELECT * FROM souschef_parked {key}", (chef, row[0]))
            order = control.execute(f"SELECT * FROM souschef_order {key}", (chef, row[0]))
            return Model(
                account, workflow_uuid, instance, row, steps, parked.fetchone(), order.fetchone()
            )
    raise SystemExit(f"no instance of {workflow} waits")


def _copy(
    stores: dict[str, sqlite3.Connection],
    placement: Placement,
    model: Model,
    count: int,
    due_ms: int | None,
) -> None:
    prefix = f"{model.account}/{model.workflow_uuid}/"
    chefs = [
        row[0]
        for name in placement.control_names()
        for row in stores[name].execute(
            "SELECT entity FROM souschef_state WHERE entity LIKE ?", (prefix + "%",)
        )
    ]
    made = dict.fromkeys(chefs, 0)
    pending: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    left = 0
    for number in range(count):
        chef = chefs[number % len(chefs)]
        made[chef] += 1
        key = engine_key(model.account, model.workflow_uuid, f"w{number}")
        home = placement.shard_of(EntityRef(ENGINE_KIND, key))
        kitchen = placement.shard_of(EntityRef(SOUSCHEF_KIND, chef))
        for shard, table, row in _rows(model, key, chef, home, kitchen, due_ms):
            pending.setdefault((shard, table), []).append(row)
        left += 1
        if left * 5 >= _ROWS_PER_COMMIT:
            _write(stores, pending)
            left = 0
    _write(stores, pending)
    for chef, n in made.items():
        store = stores[placement.shard_of(EntityRef(SOUSCHEF_KIND, chef))]
        store.execute(
            "UPDATE souschef_state SET waiting = waiting + ?, live = live + ? WHERE entity = ?",
            (n, n, chef),
        )


def _rows(
    model: Model, key: str, chef: str, home: str, kitchen: str, due_ms: int | None
) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """All rows of one copy: `(shard, table, row)`."""
    run_id = uuid.uuid4().hex
    wake_ms = model.instance.wake_ms if due_ms is None else due_ms
    instance = msgspec.structs.replace(
        model.instance, run_id=run_id, wake_ms=wake_ms, souschef=int(chef.rsplit("/", 1)[1])
    )
    yield home, "instances", instance.row(key, model.workflow_uuid)
    for row in model.steps:
        record = record_from_row(row)
        if due_ms is not None and record.due_ms == model.instance.wake_ms:
            record.due_ms = due_ms
        yield home, "steps", record.row(key)
    yield home, "alarms", (ENGINE_KIND, key, wake_ms, 0)
    _, _, _, seq, state, turn, lane, at_ms, since_ms, woken_ms, _ = model.parked
    if due_ms is not None:
        at_ms = woken_ms = due_ms
    parked = (chef, key, run_id, seq, state, turn, lane, at_ms, since_ms, woken_ms, home)
    yield kitchen, "souschef_parked", parked
    if model.order is not None:
        yield kitchen, "souschef_order", (chef, lane, at_ms, key, run_id, seq, turn, home)


def _write(
    stores: dict[str, sqlite3.Connection],
    pending: dict[tuple[str, str], list[tuple[Any, ...]]],
) -> None:
    shards = {shard for shard, _ in pending}
    for shard in shards:
        stores[shard].execute("BEGIN IMMEDIATE")
    for (shard, table), rows in pending.items():
        marks = ", ".join("?" * len(rows[0]))
        stores[shard].executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    for shard in shards:
        stores[shard].execute("COMMIT")
    pending.clear()
