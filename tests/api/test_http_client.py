"""The SDK over a real server on loopback, and over the embedded backend: the same answers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from toque.api.client import Client
from toque.api.client_http import HttpBackend, connect
from toque.gatekeeper.refusals import RateLimited
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InstanceFailed,
    InstanceFinished,
    InstanceNotFound,
    InvalidArgument,
    InvalidId,
    InvalidTransition,
    OutcomeUnknown,
    Overloaded,
    ServerUnreachable,
    ShardUnavailable,
    WorkflowNotFound,
)


@asynccontextmanager
async def reached(plane: Any, how: str) -> Any:
    """A client of either kind."""
    if how == "http":
        async with plane.client() as client:
            yield client
    else:
        yield plane.embedded()
        await plane.service.close()


both = pytest.mark.parametrize("how", ["http", "embedded"])


@both
async def test_an_instance_goes_from_create_to_outcome(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        instance = await client.create_instance("orders", "a/b/42", {"order": 42})
        assert instance.id == "a/b/42"
        assert (await instance.status()).params == {"order": 42}
        waiting = asyncio.ensure_future(instance.wait(timeout=30))
        while plane.router.calls["wait"] == 0:
            await asyncio.sleep(0)
        plane.router.finish("a/b/42")
        status = await waiting
        assert status.finished
        assert status.success
        assert status.output == {"done": True}
        assert status.output_as(dict[str, bool]) == {"done": True}
        assert plane.router.calls["wait"] == 1


@both
async def test_create_and_wait_is_one_request(plane: Any, how: str) -> None:
    plane.router.finishes_at_once = True
    async with reached(plane, how) as client:
        instance = await client.create_instance("orders", params={}, wait=30)
        assert instance.last.output == {"done": True}
        assert (await client.run_instance("orders", timeout=5)).status == "complete"
        assert plane.router.calls["create"] == 2
        assert plane.router.calls["wait"] == plane.router.calls["view"] == 0


@both
@pytest.mark.parametrize("params", ["text", '{"a": 1}', 3, None, [1, "x"], {"ä": "\N{HONEYBEE}"}])
async def test_params_keep_their_value(plane: Any, how: str, params: Any) -> None:
    async with reached(plane, how) as client:
        instance = await client.create_instance("orders", "one", params)
        assert (await instance.status()).params == params


@both
async def test_errors_arrive_as_their_classes(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        with pytest.raises(WorkflowNotFound):
            await client.create_instance("nothing")
        with pytest.raises(InstanceNotFound):
            await client.get_instance("orders", "nobody")
        await client.create_instance("orders", "one")
        with pytest.raises(InstanceAlreadyExists) as caught:
            await client.create_instance("orders", "one")
        assert caught.value.data == {"id": "one"}
        assert caught.value.number == 10405
        instance = await client.get_instance("orders", "one")
        await instance.send_event("approval", {"ok": True})
        assert list(plane.router.engine("one").events.values()) == [("approval", b'{"ok":true}')]
        await instance.terminate()
        with pytest.raises(InvalidTransition):
            await instance.terminate()
        with pytest.raises(InstanceFinished):
            await instance.send_event("approval")
        with pytest.raises(InstanceFailed, match="terminated"):
            await instance.wait(raise_on_error=True)


@both
async def test_bad_ids_are_refused_before_anything_is_sent(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        for bad in ("", "a//b", "../x", "a b", "x" * 257, "batch", "ü"):
            with pytest.raises(InvalidId):
                await client.create_instance("orders", bad)
        with pytest.raises(InvalidId):
            await client.create_instance("or/ders")
        with pytest.raises(InvalidArgument):
            await client.create_instance("orders", wait=1e6)
        with pytest.raises(InvalidArgument, match="'iid' is not known"):
            await client.create_instances("orders", [{"iid": "x"}])
    assert not plane.router.calls


@both
async def test_a_wait_that_runs_out_says_so(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        instance = await client.create_instance("orders", "one", wait=0.01)
        assert not instance.last.finished
        with pytest.raises(TimeoutError, match=r"had not ended after 0\.02 s; it is queued"):
            await instance.wait(timeout=0.02)


@both
async def test_batches_and_lists(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        await client.create_instance("orders", "n7")
        made = await client.create_instances(
            "orders", [{"id": f"n{n}", "params": {"n": n}} for n in range(250)]
        )
        assert [each.id for each in made if each.outcome == "duplicate"] == ["n7"]
        assert {each.outcome for each in made} == {"created", "duplicate"}
        assert [each.id for each in made] == [f"n{n}" for n in range(250)]
        assert (await client.instance("orders", "n3").status()).params == {"n": 3}
        seen = [line.id async for line in client.list_instances("orders", per_page=37)]
        assert sorted(seen) == sorted(f"n{n}" for n in range(250))
        plane.router.finish("n3")
        done = [line.id async for line in client.list_instances("orders", status="complete")]
        assert done == ["n3"]
        workflows = await client.list_workflows()
        assert [w.name for w in workflows] == ["orders"]
        assert workflows[0].instances["queued"] == 249
        assert (await client.get_workflow("orders")).instances["complete"] == 1


@both
async def test_steps_are_shown_in_the_form_of_their_type(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        instance = await client.create_instance("orders", "one")
        engine = plane.router.engine("one")
        engine.view = msgspec.structs.replace(engine.view, steps=plane.steps, step_count=3)
        step, nap, wait = (await instance.status()).steps
        assert (step.type, step.attempts[0].error.name) == ("step", "ValueError")
        assert step.retry_at == "2023-11-14T22:13:31.000Z"
        assert (nap.type, nap.finished, nap.end) == ("sleep", False, "2023-11-14T22:14:20.000Z")
        assert (wait.type, wait.event_type, wait.finished) == ("waitForEvent", "approval", False)


@both
async def test_a_lost_reply_never_becomes_a_duplicate_id(plane: Any, how: str) -> None:
    plane.router.lose("create", 3, after=True)
    async with reached(plane, how) as client:
        instance = await client.create_instance("orders", "one", {"n": 1})
        assert instance.id == "one"
        assert plane.router.calls["create"] == 4


async def test_the_http_client_repeats_what_can_help_and_makes_one_instance(plane: Any) -> None:
    async with plane.client() as client:
        plane.router.fail("create", Overloaded("full"))
        first = await client.create_instance("orders")
        assert plane.router.calls["create"] == 2
        assert [line.id async for line in client.list_instances("orders")] == [first.id]


async def test_the_last_error_is_told_when_time_is_up(plane: Any) -> None:
    async with plane.client(retry_for_ms=10) as client:
        plane.router.fail("create", Overloaded("full"), 5)
        with pytest.raises(Overloaded):
            await client.create_instance("orders")


async def test_no_server_is_told_as_such(plane: Any) -> None:
    async with plane.serving() as server:
        url = server.url
    backend = HttpBackend(url, None, "default", SeededEntropy(1), retry_for_ms=10)
    async with Client(backend, SeededEntropy(1)) as client:
        with pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1"):
            await client.create_instance("orders")


async def test_a_server_that_stops_ends_long_waits(plane: Any) -> None:
    async with plane.serving() as server:
        backend = HttpBackend(server.url, plane.token, "default", SeededEntropy(1), retry_for_ms=10)
        async with Client(backend, SeededEntropy(1)) as client:
            instance = await client.create_instance("orders", "one")
            waiting = asyncio.ensure_future(instance.wait())
            while plane.router.calls["wait"] == 0:
                await asyncio.sleep(0)
            await server.stop()
            with pytest.raises((ShardUnavailable, ServerUnreachable, OutcomeUnknown)):
                await waiting


def test_connect_wants_a_url() -> None:
    with pytest.raises(InvalidArgument, match="http://"):
        connect("localhost:8787")


@pytest.mark.parametrize("kind", ["http", "embedded"])
async def test_waits_are_durations_and_request_ids_are_checked(plane: Any, kind: str) -> None:
    async with reached(plane, kind) as client:
        plane.router.finishes_at_once = True
        for wait in ("5s", "5 seconds", 5, 0.5, timedelta(seconds=5)):
            made = await client.create_instance("orders", wait=wait)
            assert made.last is not None
            assert made.last.finished
        assert (await client.run_instance("orders", timeout="5 s")).success
        assert (await made.wait("1 minute")).success
        for wrong in ("soon", "", -1, float("nan"), "11 minutes"):
            with pytest.raises(InvalidArgument, match="wait is"):
                await client.create_instance("orders", wait=wrong)
        plane.router.finishes_at_once = False
        one = await client.create_instance("orders", "one", request_id="k")
        for wrong in ("", "a b", "x" * 129):
            with pytest.raises(InvalidArgument, match="request id"):
                await client.create_instance("orders", "two", request_id=wrong)
            with pytest.raises(InvalidArgument, match="request id"):
                await one.send_event("go", request_id=wrong)
            with pytest.raises(InvalidArgument, match="request id"):
                await one.terminate(request_id=wrong)
        await one.send_event("go", 1, request_id="e1")
        assert plane.router.engine("one").events == {"e1": ("go", b"1")}
        await one.pause(request_id="p1")
        await one.resume(request_id="p2")
        await one.cancel(request_id="p3")
        await one.terminate(request_id="p4")
        await one.restart(request_id="p5")
        await one.delete(request_id="p6")


@both
async def test_creates_over_the_rate_are_made_a_little_later(plane: Any, how: str) -> None:
    told = {"of": "workflow", "limit": 1, "retry_after_ms": 1}
    async with reached(plane, how) as client:
        plane.router.fail("create", RateLimited("slow", told), 2)
        assert (await client.create_instance("orders", "one")).id == "one"
        plane.router.fail("create", RateLimited("slow", told), 1)
        with pytest.raises(RateLimited):
            await client.with_options(retry_for=0).create_instance("orders", "two")
