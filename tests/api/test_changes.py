"""Operations on instances by SDK, HTTP and command line: what reaches the Engine, what comes back.

How an Engine acts on them is tested with it; here is what lies before it, and the whole once.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.api.test_cli import Served
from tests.api.test_cli import toque as toque  # a fixture
from tests.api.test_end_to_end import APP, serving
from tests.api.test_http_client import both, reached
from tests.api.test_http_refusals import CREATE, calling
from toque.api.changes import BatchChanges, Change, ItemError, StepRef
from toque.engines.failures import StepNotFound, StepUndone
from toque.engines.views import ErrorView, RollbackView
from toque.runtime.errors import (
    InstanceNotFound,
    InvalidArgument,
    InvalidId,
    InvalidTransition,
    OutcomeUnknown,
)


@both
async def test_each_operation_reaches_the_engine(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        one = await client.create_instance("orders", "one")
        await one.pause()
        await one.resume()
        await one.cancel()
        await one.restart()
        await one.restart(from_step="charge")
        await one.restart(from_step=("charge", 2))
        await one.restart(from_step={"name": "w", "type": "waitForEvent"})
        await one.terminate(rollback=True)
        source = "api" if how == "http" else "binding"
        assert plane.router.engine("one").done == [
            ("pause",),
            ("resume",),
            ("cancel", source),
            ("restart", "", 1, "do"),
            ("restart", "charge", 1, "do"),
            ("restart", "charge", 2, "do"),
            ("restart", "w", 1, "waitForEvent"),
            ("terminate", True, source),
        ]
        with pytest.raises(StepNotFound):
            await one.restart(from_step="nowhere")
        await one.delete()
        with pytest.raises(InstanceNotFound):
            await one.delete()


@both
async def test_wrong_operations_are_refused_before_anything_is_sent(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        one = client.instance("orders", "one")
        for step in ({"nmae": "x"}, {"name": "x", "count": 0}, ("x", "y", "z", 1), 7):
            with pytest.raises(InvalidArgument):
                await one.restart(from_step=step)
        with pytest.raises(InvalidId):
            await one.restart(from_step="")
        for ids in ([], ["x"] * 101):
            with pytest.raises(InvalidArgument, match="1 to 100"):
                await client.delete_instances("orders", ids)
        with pytest.raises(InvalidId):
            await client.delete_instances("orders", ["one", "a b"])
        with pytest.raises(InvalidArgument, match="not supported"):
            await client.change_instances("orders", ["one"], "explode")
        with pytest.raises(InvalidArgument, match="retention"):
            await client.create_instance("orders", retention=("31 days", 0))
        for pair in ((1,), 1, "ab"):
            with pytest.raises(InvalidArgument, match="pair of durations"):
                await client.create_instance("orders", retention=cast(Any, pair))
        # a string is no list of ids: its letters would be taken for them
        with pytest.raises(InvalidArgument, match="ids must be a list of texts"):
            await client.delete_instances("orders", "tx")
        with pytest.raises(InvalidArgument, match="ids must be a list of texts"):
            await client.change_instances("orders", "tx", "pause")
        with pytest.raises(InvalidArgument, match="Right"):
            await one.restart(from_step=cast(Any, ("s", "2")))
    assert not plane.router.calls


@both
async def test_a_batch_tells_of_each_item(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        for name in ("a", "b", "c"):
            await client.create_instance("orders", name)
        done = await client.change_instances("orders", ["a", "nobody", "b"], "pause")
        assert done.changed == [("a", "paused"), ("b", "paused")]
        assert [(e.id, e.code) for e in done.errors] == [("nobody", 10400)]
        done = await client.change_instances("orders", ["a", "a"], Change("terminate", True))
        assert done.changed == [("a", "terminated")]
        assert [(e.id, e.code) for e in done.errors] == [("a", 10407)]
        done = await client.delete_instances("orders", ["x", "a", "x", "b"])
        assert done.changed == [("a", "deleted"), ("b", "deleted")]
        assert [(e.id, e.code) for e in done.errors] == [("x", 10400), ("x", 10400)]
        assert [line.id async for line in client.list_instances("orders")] == ["c"]


async def test_one_that_fails_unexpectedly_is_told_like_the_others(plane: Any) -> None:
    async with calling(plane) as call:
        for name in ("a", "b"):
            await call("POST", CREATE, b'{"instance_id":"%s"}' % name.encode())
        plane.router.fail("delete", OutcomeUnknown("lost"))  # of a, asked again
        plane.router.fail("delete", ValueError("secret"))
        status, found, _ = await call("POST", f"{CREATE}/batch/delete", b'{"instances":["a","b"]}')
        assert status == 200
        told = found["result"]
        assert told["deleted"] == [{"id": "a"}]
        assert [(e["id"], e["code"]) for e in told["errors"]] == [("b", 10001)]
        assert "secret" not in json.dumps(found)


@both
async def test_all_of_some_statuses_are_terminated_in_the_background(plane: Any, how: str) -> None:
    source = "api" if how == "http" else "binding"
    async with reached(plane, how) as client:
        plane.router.lose("begin", after=True)
        assert await client.terminate_instances("orders", ["queued"]), "asked again by the same id"
        assert not await client.terminate_instances("orders", ["queued"])
        [(key, (how, statuses, _))] = plane.router.clearings.items()
        assert (key, how, statuses) == ("default/uuid-default-orders", "terminate", ["queued"])
        plane.router.clearings.clear()
        assert await client.terminate_instances("orders")
        [(_, statuses, _)] = plane.router.clearings.values()
        assert set(statuses) == {
            "queued", "running", "waiting", "paused", "waitingForPause", "rollingBack",
        }  # fmt: skip
        assert set(plane.router.clearing_sources) == {source}


@both
async def test_retention_goes_with_the_create(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        await client.create_instance("orders", "one", retention=("1 day", 30))
        assert plane.router.engine("one").retention == (86_400_000, 30_000)
        await client.create_instance("orders", "two")
        assert plane.router.engine("two").retention is None


async def test_retention_and_rollback_in_the_shapes_of_http(plane: Any) -> None:
    async with calling(plane) as call:
        body = b'{"instance_id":"one","instance_retention":{"success_retention":"2 hours"}}'
        assert (await call("POST", CREATE, body))[0] == 200
        engine = plane.router.engine("one")
        assert engine.retention == (7_200_000, None)  # the workflow's own, as it is then
        assert (await call("GET", f"{CREATE}/one"))[1]["result"]["rollback"] is None
        view = RollbackView("failed", ErrorView("ValueError", "no"))
        engine.view = type(engine.view)(
            **{
                f: getattr(engine.view, f) for f in engine.view.__struct_fields__ if f != "rollback"
            },
            rollback=view,
        )
        found = (await call("GET", f"{CREATE}/one"))[1]["result"]["rollback"]
        assert found["outcome"] == "failed"
        assert (found["error"]["name"], found["error"]["message"]) == ("ValueError", "no")


def test_the_command_line(toque: Served) -> None:
    for name in ("a", "b", "c"):
        toque("create", "orders", "--id", name)
    done = toque("instances", "pause", "orders", "a", "-", input="b\nnobody\n")
    assert done.exit_code == 4
    assert done.stdout == "a is paused\nb is paused\n"
    assert "nobody" in done.stderr
    assert toque("instances", "resume", "orders", "a", "b").exit_code == 0
    restart = ("instances", "restart", "orders", "a", "--from-step", "pay", "--count", "2")
    assert toque(*restart).exit_code == 0
    assert toque.plane.router.engine("a").done[-1] == ("restart", "pay", 2, "do")
    assert toque("instances", "cancel", "orders", "a").exit_code == 0
    ended = toque("instances", "terminate", "orders", "a", "--rollback", "--json")
    assert json.loads(ended.stdout) == {"changed": [["a", "terminated"]], "errors": []}
    assert toque.plane.router.engine("a").done[-1] == ("terminate", True, "api")
    assert toque("instances", "terminate", "orders", "a").exit_code == 5
    assert toque("instances", "delete", "orders", "-", input="a b c").exit_code == 0
    assert json.loads(toque("instances", "list", "orders", "--json").stdout) == []
    assert toque("instances", "restart", "orders", "a", "--step-type", "x").exit_code == 4
    wrong = toque("instances", "restart", "orders", "a", "--from-step", "b", "--step-type", "x")
    assert wrong.exit_code == 2


@both
async def test_the_whole_once(tmp_path: Path, how: str) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP + SAGA)
    async with serving(app, how) as client:
        await operate(client)


SAGA = """

class Trip(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("book", lambda: "seat 4", rollback=lambda output: None)
        await step.wait_for_event("go", "go", timeout="1 hour")
        raise ValueError("no trip")
"""


async def operate(client: Any) -> None:
    """Each operation on real instances."""
    trip = await client.create_instance("Trip", "t1")
    await until(trip, "waiting")
    await trip.pause()
    await until(trip, "paused")
    await trip.resume()
    await trip.send_event("go")
    ended = await trip.wait(30)
    assert (ended.status, ended.error.name) == ("errored", "ValueError")
    assert ended.rollback.outcome == "complete"
    steps = [(step.type, step.name) for step in (await trip.status()).steps]
    assert steps == [("step", "book-1"), ("waitForEvent", "go-1"), ("rollback", "rollback book-1")]
    run_id = ended.run_id
    with pytest.raises(StepUndone, match="book"):
        await trip.restart(from_step={"name": "go", "type": "waitForEvent"})
    await trip.restart(from_step={"name": "book"})
    ended = await trip.wait(30)  # its event is back
    assert (ended.status, ended.run_id != run_id) == ("errored", True)
    await trip.restart()
    await until(trip, "waiting")
    await trip.terminate(rollback=True)
    ended = await trip.wait(30)
    assert (ended.status, ended.error, ended.rollback.outcome) == ("terminated", None, "complete")
    await show_the_end(trip, "rollback book-1")
    with pytest.raises(InvalidTransition):
        await trip.cancel()
    await trip.delete()
    with pytest.raises(InstanceNotFound):
        await trip.status()
    again = await client.create_instance("Trip", "t1")
    await until(again, "waiting")
    await again.cancel()
    ended = await again.wait(30)
    assert (ended.status, ended.error.name) == ("terminated", "Cancelled")
    await show_the_end(again, "go-1")
    done = await client.delete_instances("Trip", ["t1", "t2"])
    assert done == BatchChanges(
        [("t1", "deleted")], [ItemError("t2", 10400, "there is no instance 't2'.")]
    )
    assert StepRef("a") == StepRef("a", 1, "do")


async def show_the_end(instance: Any, before: str) -> None:
    """The last step of what was terminated says so."""
    *_, last, end = (await instance.status()).steps
    assert (last.name, end.type, end.name) == (before, "termination", "termination")
    assert end.start == end.end == (await instance.status()).end
    assert end.trigger["source"] in ("api", "binding")


async def until(instance: Any, status: str) -> None:
    """It has a status soon."""
    async with asyncio.timeout(30):
        while (await instance.status(steps=False)).status != status:
            await asyncio.sleep(0)
