"""HTTP and SDK over a whole embedded runtime: the same promises, now with real entities."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.client import Client
from toque.api.client_http import HttpBackend
from toque.api.server_http import HttpServer
from toque.api.wiring import NO_RATES, start_embedded
from toque.engines.failures import StepNotFound
from toque.runtime.clock import SystemClock
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InstanceFailed,
    InstanceFinished,
    InstanceNotFound,
    InvalidArgument,
    InvalidTransition,
    WorkflowNotFound,
)

APP = """
import toque


class Add(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.do("add", lambda: sum(event.payload))


class Ask(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        answer = await step.wait_for_event("ask", "answer", timeout="1 hour")
        return answer.payload


class Fail(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        def no():
            raise toque.NonRetryableError("never")

        await step.do("try", no)


class Retry(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        def no():
            raise ValueError("not yet")

        await step.do("try", no, config={"retries": {"limit": 3, "delay": "1 hour"}})


class Export(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        def lines():
            for number in range(event.payload):
                yield b"%d\\n" % number

        async def chunks():
            for _ in range(3):
                yield bytes(500_000)

        await step.do("lines", lines)
        await step.do("chunks", chunks)
        await step.do("secret", lines, {"sensitive": "output"})
        def flaky(ctx):
            if ctx.attempt == 1:
                raise toque.StepFailed("once", {"left": 3})
            return {"big": "x" * 300_000}

        await step.do("big", flaky, {"retries": {"limit": 1, "delay": 0}})
        got = await step.wait_for_event("go", "go")
        raise toque.NonRetryableError("told", "Told", {"got": got.payload})
"""


@pytest.fixture
def app_path(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@asynccontextmanager
async def serving(app_path: Path, how: str = "http") -> AsyncIterator[Client]:
    """A client over a runtime on the directory beside the app."""
    data = app_path.parent / "data"
    options: dict[str, Any] = {"data_shards": 2, "creates_per_second": NO_RATES}
    async with start_embedded(data, app_path=app_path, **options) as runtime:
        if how == "embedded":
            yield runtime.client()
            return
        app = make_app(
            runtime.control_plane,
            tokens=TokenBook({"t": "default", "o": "other"}),
            version="test",
        )
        async with HttpServer(app, SystemClock()) as server:
            entropy = SystemEntropy()
            backend = HttpBackend(server.url, "t", "default", entropy, retry_for_ms=3_000)
            async with Client(backend, entropy) as client:
                yield client


both = pytest.mark.parametrize("how", ["http", "embedded"])


async def until(client: Client, workflow: str, instance_id: str, status: str) -> Any:
    """The instance's status once it is `status`."""
    instance = client.instance(workflow, instance_id)
    while (found := await instance.status()).status != status:
        assert not found.finished
    return found


@both
async def test_create_and_wait_gives_the_outcome(app_path: Path, how: str) -> None:
    async with serving(app_path, how) as client:
        status = await client.run_instance("Add", "a/1", [1, 2, 3], timeout=30)
        assert (status.id, status.output, status.success) == ("a/1", 6, True)
        detail = await client.instance("Add", "a/1").status()
        assert [(s.name, s.output, s.success) for s in detail.steps] == [("add-1", 6, True)]
        assert detail.steps[0].config["retries"]["limit"] == 5
        with pytest.raises(InstanceFailed, match="never"):
            await client.run_instance("Fail", timeout=30)


@both
async def test_events_and_ends(app_path: Path, how: str) -> None:
    async with serving(app_path, how) as client:
        early = await client.create_instance("Ask", "early")
        await early.send_event("answer", {"n": 1})
        assert (await early.wait(30)).output == {"n": 1}
        with pytest.raises(InstanceFinished):
            await early.send_event("answer")
        with pytest.raises(InvalidTransition):
            await early.terminate()
        late = await client.create_instance("Ask", "late")
        waiting = await until(client, "Ask", "late", "waiting")
        (wait,) = waiting.steps
        assert (wait.type, wait.finished, wait.event_type) == ("waitForEvent", False, "answer")
        assert wait.end > wait.start
        await late.terminate()
        ended = await late.wait(30)
        assert (ended.status, ended.success) == ("terminated", False)
        with pytest.raises(InstanceAlreadyExists):
            await client.create_instance("Ask", "late")
        with pytest.raises(InstanceNotFound):
            await client.get_instance("Ask", "nobody")
        with pytest.raises(WorkflowNotFound):
            await client.create_instance("Nothing")


@both
async def test_a_step_that_waits_for_its_retry_says_when(app_path: Path, how: str) -> None:
    async with serving(app_path, how) as client:
        await client.create_instance("Retry", "one")
        found = await until(client, "Retry", "one", "waiting")
        (step,) = found.steps
        assert (step.success, step.end) == (None, None)
        assert step.attempts[0].error.message == "not yet"
        assert step.attempts[0].end is not None
        assert step.retry_at > step.start


@both
async def test_many_at_once_are_all_listed_once(app_path: Path, how: str) -> None:
    async with serving(app_path, how) as client:
        made = await client.create_instances(
            "Add", ({"id": f"n/{n}", "params": [n]} for n in range(300))
        )
        outcomes = await asyncio.gather(*(client.instance("Add", one.id).wait(30) for one in made))
        assert [status.output for status in outcomes] == list(range(300))
        lines = [line async for line in client.list_instances("Add", per_page=41)]
        assert sorted(line.id for line in lines) == sorted(f"n/{n}" for n in range(300))
        assert {line.status for line in lines} == {"complete"}
        assert (await client.get_workflow("Add")).instances["complete"] == 300


async def test_a_request_id_holds_over_a_restart(app_path: Path) -> None:
    async with serving(app_path) as client:
        first = await client.create_instance("Ask", request_id="r1")
        named = await client.create_instance("Ask", "named", request_id="r2")
    async with serving(app_path) as client:
        assert (await client.create_instance("Ask", request_id="r1")).id == first.id
        again = await client.create_instance("Ask", "named", request_id="r2")
        with pytest.raises(InstanceAlreadyExists):
            await client.create_instance("Ask", "named", request_id="r3")
        await again.send_event("answer", "still here")
        assert (await client.instance("Ask", named.id).wait(30)).output == "still here"
        assert len([line async for line in client.list_instances("Ask")]) == 2


@both
async def test_streams_and_outputs_in_full(app_path: Path, how: str) -> None:
    async with serving(app_path, how) as client:
        instance = await client.create_instance("Export", params=100_000)
        await instance.send_event("go", {"a": 1})
        with pytest.raises(InstanceFailed) as failed:
            await instance.output(timeout=30)
        assert failed.value.data["data"] == {"got": {"a": 1}}

        content = b"".join([part async for part in instance.stream("lines-1")])
        assert content == b"".join(b"%d\n" % number for number in range(100_000))
        told = await instance.step_output("lines-1")
        assert told.output == {
            "stream": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        }
        assert sum([len(part) async for part in instance.stream("chunks-1")]) == 1_500_000
        assert (await instance.step_output("secret-1")).output == "[REDACTED]"
        assert len((await instance.step_output("big-1")).output["big"]) == 300_000
        first = await instance.step_output("big-1", attempt=1)
        assert first.status == "errored"
        assert first.error is not None
        assert first.error.data == {"left": 3}
        for name in ("secret-1", "big-1"):
            with pytest.raises(InvalidArgument, match="is no stream"):
                await anext(instance.stream(name))
        for name, attempt in (("none-1", 0), ("big-1", 7)):
            with pytest.raises(StepNotFound):
                await instance.step_output(name, attempt=attempt)


async def test_a_step_of_another_type_over_http(app_path: Path) -> None:
    async with serving(app_path) as client, aiohttp.ClientSession() as session:
        instance = await client.create_instance("Export", params=3)
        await instance.send_event("go", [1])
        await instance.wait(30)
        backend = client.backend
        assert isinstance(backend, HttpBackend)
        url = f"{backend._base}/workflows/Export/instances/{instance.id}/step"
        headers = {"Authorization": "Bearer t"}
        waited = {"name": "go-1", "type": "waitForEvent"}
        async with session.get(url, params=waited, headers=headers) as answer:
            assert (await answer.json())["result"] == {
                "status": "complete",
                "error": None,
                "output": [1],
                "event_type": "go",
            }
        async with session.get(url, params={"name": "lines-1"}, headers=headers) as answer:
            assert answer.content_type == "application/octet-stream"
            assert await answer.read() == b"0\n1\n2\n"
            assert len(answer.headers["etag"]) == 66
        for params, status in (({}, 400), ({"name": "x-1"}, 404), ({"name": "a", "b": "c"}, 400)):
            async with session.get(url, params=params, headers=headers) as answer:
                assert answer.status == status
