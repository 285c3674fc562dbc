"""Many creates: outcomes, retention, progress, bounds, and what a failure in the middle gives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toque.api.client import Client
from toque.api.client_values import CreateProgress
from toque.api.service import NewInstance
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import (
    BatchIncomplete,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    WorkflowNotFound,
)


class Batches:
    """A backend that makes batches, as it is told: an error in place of the answer of some."""

    account = "default"
    wait_max_ms = 60_000

    def __init__(self, errors: dict[int, Exception] | None = None, taken: Any = ()) -> None:
        self.errors = errors or {}
        self.sent: list[tuple[str, list[NewInstance]]] = []
        self.taken = set(taken)
        self.under_way = self.most = 0

    async def create_batch(
        self, workflow: str, news: list[NewInstance], request_id: str
    ) -> list[str]:
        number = int(request_id.rpartition(".")[2])
        self.sent.append((request_id, news))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        if number in self.errors:
            raise self.errors[number]
        made = []
        for index, new in enumerate(news):
            one = new.instance_id or f"made-{number}-{index}"
            if one not in self.taken:
                made.append(one)
                self.taken.add(one)
        return made


def client_of(backend: Any) -> Client:
    return Client(backend, SeededEntropy(1))


def specs(count: int) -> list[dict[str, Any]]:
    return [{"id": f"n{n}"} for n in range(count)]


async def test_each_has_an_outcome_in_the_order_given() -> None:
    backend = Batches(taken={"b"})
    given = [{"id": "a"}, {"params": 1}, {"id": "b"}, {"id": "a"}, {}]
    found = await client_of(backend).create_instances("orders", given)
    assert [(each.index, each.id, each.outcome) for each in found] == [
        (0, "a", "created"),
        (1, "made-0-1", "created"),
        (2, "b", "duplicate"),
        (3, "a", "duplicate"),
        (4, "made-0-4", "created"),
    ]


async def test_retention_is_one_of_each() -> None:
    backend = Batches()
    given: list[dict[str, Any]] = [{"retention": ("1 day", 60)}, {}]
    await client_of(backend).create_instances("orders", given)
    assert [new.retention for new in backend.sent[0][1]] == [(86_400_000, 60_000), None]


async def test_progress_is_told_and_few_are_under_way() -> None:
    backend, told = Batches(), list[CreateProgress]()
    await client_of(backend).create_instances(
        "orders", specs(950), progress=told.append, parallel=3
    )
    assert [each.done for each in told] == [*range(100, 901, 100), 950]
    assert {each.total for each in told} == {950}
    assert backend.most == 3


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_iterator_is_read_as_it_is_sent(asynchronous: bool) -> None:
    backend, ahead = Batches(), list[int]()

    def numbers() -> Any:
        for n in range(1_000):
            ahead.append(n - 100 * len(backend.sent))
            yield {"id": f"n{n}"}

    async def later() -> Any:
        for each in numbers():
            yield each

    found = await client_of(backend).create_instances(
        "orders", later() if asynchronous else numbers(), parallel=2
    )
    assert len(found) == 1_000
    assert max(ahead) <= 300


async def test_a_list_with_a_wrong_item_sends_nothing() -> None:
    backend = Batches()
    with pytest.raises(InvalidArgument, match=r"instance 500: 'iid'"):
        await client_of(backend).create_instances("orders", [*specs(500), {"iid": 1}])
    assert backend.sent == []
    with pytest.raises(InvalidArgument, match=r"instance 500: 'iid'"):
        await client_of(backend).create_instances("orders", iter([*specs(500), {"iid": 1}]))
    assert backend.under_way == 0


async def test_a_failure_in_the_middle_tells_of_all() -> None:
    backend = Batches({1: OutcomeUnknown("late"), 2: Overloaded("full")})
    with pytest.raises(BatchIncomplete, match=r"of 400 creates 200 have failed \(100") as caught:
        await client_of(backend).create_instances("orders", specs(400), request_id="r")
    outcomes = [each.outcome for each in caught.value.results]
    assert outcomes == ["created"] * 100 + ["unknown"] * 100 + ["failed"] * 100 + ["created"] * 100
    assert [key for key, _ in backend.sent] == ["r.0", "r.1", "r.2", "r.3"]
    found = await client_of(Batches({0: Overloaded("full")})).create_instances(
        "orders", specs(150), raise_on_error=False
    )
    assert [each.outcome for each in found] == ["failed"] * 100 + ["created"] * 50
    assert isinstance(found[0].error, Overloaded)


async def test_one_reason_for_all_is_raised_itself() -> None:
    backend = Batches({0: WorkflowNotFound("none"), 1: WorkflowNotFound("none")})
    with pytest.raises(WorkflowNotFound):
        await client_of(backend).create_instances("orders", specs(150))


async def test_a_callback_that_fails_stops_it_and_is_raised() -> None:
    backend = Batches()

    def broken(_: CreateProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client_of(backend).create_instances("orders", specs(900), progress=broken, parallel=1)
    assert len(backend.sent) <= 2
    assert backend.under_way == 0


async def test_when_the_caller_is_cancelled_nothing_goes_on() -> None:
    backend = Batches()
    task = asyncio.ensure_future(client_of(backend).create_instances("orders", specs(900)))
    while not backend.under_way:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    sent = len(backend.sent)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(backend.sent) == sent
