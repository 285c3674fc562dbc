"""Operations and the account cache: what is asked of whom, how often, and what a loss means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toque.api.service import NewInstance, made_id
from toque.runtime import limits
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InvalidArgument,
    InvalidId,
    InvalidPayload,
    OutcomeUnknown,
    PayloadTooLarge,
    ShardUnavailable,
    WorkflowNotFound,
)
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


# --- the cache ---


async def test_a_miss_asks_the_account_once_however_many_wait(plane: Any) -> None:
    work = [plane.service.create_instance("default", "orders") for _ in range(100)]
    await asyncio.gather(*work)
    assert plane.router.calls["snapshot"] == 1
    assert plane.router.calls["create"] == 100


async def test_the_accounts_load_does_not_grow_with_bad_names(plane: Any) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def ask() -> None:
        while loop.time() < began + 5:
            with pytest.raises(WorkflowNotFound):
                await plane.service.create_instance("default", "nothing")

    await asyncio.gather(*(ask() for _ in range(20)))
    seconds = loop.time() - began
    assert plane.router.calls["snapshot"] <= seconds * 1000 / limits.SNAPSHOT_GAP_MS + 2


async def test_more_accounts_than_are_kept_are_answered_at_the_same_time(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ACCOUNTS_CACHED_MAX", 3)

    async def told(account: str) -> str:
        with pytest.raises(WorkflowNotFound) as refused:
            await plane.service.get_workflow(account, "orders")
        return refused.value.code

    works = [asyncio.create_task(told(f"account-{number}")) for number in range(20)]
    await asyncio.wait(works)
    assert not any(work.cancelled() for work in works)
    await told("one-more")
    assert len(plane.service._cache._accounts) == 3


async def test_a_workflow_is_seen_as_soon_as_it_is_there(plane: Any) -> None:
    with pytest.raises(WorkflowNotFound):
        await plane.service.get_workflow("default", "refunds")
    plane.router.add_workflow("refunds")
    assert (await plane.service.get_workflow("default", "refunds")).record.name == "refunds"


async def test_a_snapshot_is_refreshed_behind_its_users_and_then_before_them(plane: Any) -> None:
    async def version() -> str:
        return (await plane.service.get_workflow("default", "orders")).record.uuid

    calls = plane.router.calls
    old = await version()
    plane.router.workflows["default"]["orders"] = record = plane.router.add_workflow("orders")
    plane.router.workflows["default"]["orders"] = type(record)(
        "orders", "new-uuid", *(getattr(record, f) for f in record.__struct_fields__[2:])
    )
    await asyncio.sleep(0.4)
    assert (await version(), calls["snapshot"]) == (old, 1)
    await asyncio.sleep(0.2)
    assert await version() == old  # used as it is, refreshed behind
    await asyncio.sleep(0.01)
    assert (await version(), calls["snapshot"]) == ("new-uuid", 2)
    await asyncio.sleep(3600)
    assert calls["snapshot"] == 2  # nobody asked, nothing was refreshed
    await version()
    assert calls["snapshot"] == 3


async def test_creates_go_on_while_the_account_does_not_answer(plane: Any) -> None:
    await plane.service.create_instance("default", "orders")
    await asyncio.sleep(60)
    plane.router.lose("snapshot", 1000)
    assert (await plane.service.create_instance("default", "orders")).status == "queued"
    with pytest.raises(ShardUnavailable):
        await plane.service.create_instance("default", "nothing")


# --- losses ---


async def test_lost_replies_are_asked_again_with_the_same_request_id(plane: Any) -> None:
    plane.router.lose("create", 5, after=True)
    plane.router.lose("create", 5)
    view = await plane.service.create_instance("default", "orders", instance_id="one")
    assert view.id == "one"
    assert plane.router.calls["create"] == 11
    assert len(plane.router.engines) == 1


async def test_at_the_deadline_an_unknown_outcome_is_told_as_unknown(plane: Any) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    plane.router.lose("create", 1000, after=True)
    with pytest.raises(OutcomeUnknown, match="same Idempotency-Key"):
        await plane.service.create_instance(
            "default", "orders", instance_id="one", request_id="mine"
        )
    assert loop.time() - began <= limits.REQUEST_DEADLINE_MS / 1000 + 1
    plane.router.faults.clear()
    view = await plane.service.create_instance(
        "default", "orders", instance_id="one", request_id="mine"
    )
    assert view.id == "one"
    with pytest.raises(InstanceAlreadyExists):
        await plane.service.create_instance("default", "orders", instance_id="one")


async def test_what_was_never_sent_is_told_as_unavailable(plane: Any) -> None:
    plane.router.lose("create", 1000)
    with pytest.raises(ShardUnavailable):
        await plane.service.create_instance("default", "orders")
    plane.router.lose("view", 1000, after=True)
    plane.router.faults.pop("create")
    view = await plane.service.create_instance("default", "orders")
    with pytest.raises(OutcomeUnknown, match="lost reply"):
        await plane.service.get_instance("default", "orders", view.id)


async def test_a_long_wait_is_cut_in_slices_and_survives_losses(plane: Any) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    creating = asyncio.ensure_future(
        plane.service.create_instance("default", "orders", instance_id="one", wait_ms=300_000)
    )
    await asyncio.sleep(100)
    plane.router.lose("wait", 2, after=True)
    await asyncio.sleep(100)
    plane.router.finish("one")
    view = await creating
    assert view.status == "complete"
    assert loop.time() - began < 201
    still = await plane.service.create_instance("default", "orders", wait_ms=50_000)
    assert still.status == "queued"
    assert 249 < loop.time() - began < 252


# --- requests ---


async def test_a_made_id_follows_from_the_request(plane: Any) -> None:
    first = await plane.service.create_instance("default", "orders", request_id="r1")
    again = await plane.service.create_instance("default", "orders", request_id="r1")
    other = await plane.service.create_instance("default", "orders", request_id="r2")
    assert first.id == again.id != other.id
    assert made_id("a", "b", "c") != made_id("a", "b", "d")
    assert first.id[14] == "4"
    assert first.id[19] in "89ab"
    assert len(first.id) == 36


async def test_a_batch_is_whole_or_refused_and_can_be_repeated(plane: Any) -> None:
    service = plane.service
    with pytest.raises(InvalidId, match="instance 1 of the batch"):
        await service.create_instances("default", "orders", [NewInstance("a"), NewInstance("a b")])
    assert not plane.router.engines
    items = [NewInstance("a"), NewInstance("b"), NewInstance("a"), NewInstance(), NewInstance()]
    plane.router.lose("create", 1000)
    plane.router.faults["create"].appendleft((ShardUnavailable("x"), True))
    with pytest.raises((ShardUnavailable, OutcomeUnknown)):
        await service.create_instances("default", "orders", items, request_id="r")
    plane.router.faults.clear()
    result = await service.create_instances("default", "orders", items, request_id="r")
    assert [view.id for view in result.created[:2]] == ["a", "b"]
    assert (len(result.created), result.existing, result.repeated) == (4, [], ["a"])
    again = await service.create_instances("default", "orders", items, request_id="r")
    assert again.created == result.created
    new = await service.create_instances("default", "orders", items[:2])
    assert (new.created, new.existing) == ([], ["a", "b"])


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (InvalidId, {"instance_id": "a//b"}),
        (InvalidPayload, {"params": b"{"}),
        (InvalidPayload, {"params": b""}),
        (InvalidPayload, {"params": b"[" * 70 + b"]" * 70}),
        (PayloadTooLarge, {"params": b'"' + b"x" * limits.PAYLOAD_BYTES_MAX + b'"'}),
        (InvalidArgument, {"wait_ms": -1}),
        (InvalidArgument, {"wait_ms": limits.WAIT_MAX_MS + 1}),
        (InvalidArgument, {"request_id": ""}),
        (InvalidArgument, {"request_id": "a\n"}),
        (InvalidArgument, {"request_id": "x" * 129}),
    ],
)
async def test_bad_creates_reach_nobody(plane: Any, error: type, given: Any) -> None:
    with pytest.raises(error):
        await plane.service.create_instance("default", "orders", **given)
    assert plane.router.calls["create"] == 0


async def test_accounts_are_walls(plane: Any) -> None:
    plane.router.add_workflow("orders", "other")
    await plane.service.create_instance("default", "orders", instance_id="one")
    assert (await plane.service.create_instance("other", "orders", instance_id="one")).id == "one"
    assert len(plane.router.engines) == 2
    assert (await plane.service.get_workflow("other", "orders")).counts["queued"] == 1
    for bad in ("a/b", "", "../default"):
        with pytest.raises(InvalidId):
            await plane.service.create_instance(bad, "orders")
