"""Pages of instances: the right ones, in order, without looking at the others."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator

import pytest

from toque.engines.journal import INSTANCES
from toque.engines.pages import page_query
from toque.engines.status import HOLDS_SLOT, STATUSES
from toque.engines.views import PageRequest
from toque.runtime.schema_sqlite import create_index, create_table

PREFIX = "acc/u1/"
ORDERED = sorted(STATUSES)


@pytest.fixture
def store() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute(create_table(INSTANCES))
    for index in INSTANCES.indexes:
        connection.execute(create_index(INSTANCES, index))
    yield connection
    connection.close()


def put(
    store: sqlite3.Connection, name: str, status: str, created_ms: int, uuid: str = "u1"
) -> None:
    active = int(status in HOLDS_SLOT)
    row = (
        f"acc/{uuid}/{name}",
        uuid,
        created_ms,
        status,
        active,
        None,
        None,
        0,
        "v",
        "api",
        0,
        b"",
    )
    store.execute(f"INSERT INTO instances VALUES ({', '.join('?' * len(row))})", row)


def page(store: sqlite3.Connection, request: PageRequest) -> list[tuple[str, str, int]]:
    query, params = page_query(request, PREFIX)
    return [(row[0], row[1], row[2]) for row in store.execute(query.sql, params)]


def expected(
    store: sqlite3.Connection, request: PageRequest, after: tuple[int, str] | None
) -> list[tuple[str, str, int]]:
    rows = store.execute("SELECT entity, status, created_ms FROM instances").fetchall()
    chosen = [
        row
        for row in rows
        if row[0].startswith(PREFIX)
        and (not request.statuses or row[1] in request.statuses)
        and (request.since_ms is None or row[2] >= request.since_ms)
        and (request.until_ms is None or row[2] < request.until_ms)
    ]
    chosen.sort(key=lambda row: (row[2], row[0]), reverse=request.newest_first)
    if after is not None:
        key = (after[0], PREFIX + after[1])
        chosen = [
            r
            for r in chosen
            if ((r[2], r[0]) < key if request.newest_first else (r[2], r[0]) > key)
        ]
    return chosen[: request.limit]


@pytest.mark.parametrize("seed", range(5))
def test_pages_of_any_statuses_are_those_of_a_plain_filter(
    store: sqlite3.Connection, seed: int
) -> None:
    dice = random.Random(seed)
    for number in range(300):
        uuid = dice.choice(["u1", "u1", "u1", "u2"])
        put(store, f"i{number}", dice.choice(ORDERED), dice.randrange(40), uuid)
    for _ in range(60):
        statuses = dice.sample(ORDERED, dice.randrange(len(ORDERED) + 1))
        after = (dice.randrange(40), f"i{dice.randrange(300)}") if dice.random() < 0.5 else None
        since = dice.randrange(40) if dice.random() < 0.3 else None
        until = dice.randrange(40) if dice.random() < 0.3 else None
        newest_first = dice.random() < 0.5
        request = PageRequest("acc", "u1", after, newest_first, 7, statuses, since, until)
        assert page(store, request) == expected(store, request, after)


@pytest.mark.parametrize("status", [status for status in ORDERED if status != "queued"])
@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest", "newest"])
def test_few_among_many_are_found_without_looking_at_the_others(
    store: sqlite3.Connection, status: str, newest_first: bool
) -> None:
    crowd = "waiting" if status != "waiting" else "complete"
    for number in range(5_000):
        put(store, f"i{number}", crowd, number)
    put(store, "one", status, 2_500)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    store.set_progress_handler(count, 100)
    request = PageRequest("acc", "u1", None, newest_first, 50, [status], None, None)
    assert page(store, request) == [(PREFIX + "one", status, 2_500)]
    assert steps <= 500
