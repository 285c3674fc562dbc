"""Watching instances over HTTP, SDK and command line, with real entities behind."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.api.test_cli import Served
from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.client import Client
from toque.api.client_http import HttpBackend
from toque.api.server_http import HttpServer
from toque.api.subscribe_http import EventStream
from toque.api.wiring import start_embedded
from toque.engines.views import EventPage, InstanceEvent
from toque.runtime import limits
from toque.runtime.clock import SystemClock
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import InstanceNotFound, InvalidArgument

APP = """
import asyncio
import toque


class Ask(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("first", lambda: 1)
        answer = await step.wait_for_event("ask", "answer", timeout="1 hour")
        return answer.payload


class Hang(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        async def body():
            await asyncio.get_running_loop().create_future()

        await step.do("hang", body)
"""
UP_TO_WAIT = [
    "workflow_queued",
    "workflow_started",
    "step_started",
    "attempt_started",
    "attempt_completed",
    "step_completed",
    "wait_started",
    "workflow_waiting",
]
ALL = [
    *UP_TO_WAIT,
    "workflow_queued",
    "workflow_running",
    "wait_completed",
    "workflow_completed",
]


@asynccontextmanager
async def runtime(folder: Path, **options: Any) -> Any:
    """A runtime with the workflows of APP, its server's URL, and both clients."""
    path = folder / "app.py"
    path.write_text(APP)
    async with start_embedded(
        folder / "data", app_path=path, data_shards=2, control_shards=1, **options
    ) as running:
        tokens = TokenBook({"t": "default"})
        app = make_app(running.control_plane, tokens=tokens, version="test")
        async with HttpServer(app, SystemClock()) as server:
            backend = HttpBackend(server.url, "t", "default", SystemEntropy())
            async with Client(backend, SystemEntropy()) as client:
                yield client, running.client(), server.url


async def waits(instance: Any) -> None:
    """Return when it waits for its event."""
    async for event in instance.events(types=["workflow_waiting"]):
        assert event.type == "workflow_waiting"
        return


async def test_both_clients_follow_an_instance_to_its_end(tmp_path: Path) -> None:
    async with runtime(tmp_path) as (http, embedded, _):
        instance = await http.create_instance("Ask", "a/1")
        await waits(instance)

        async def kinds(client: Client) -> list[Any]:
            return [event async for event in client.instance("Ask", "a/1").events()]

        following = [asyncio.create_task(kinds(client)) for client in (http, embedded)]
        await instance.send_event("answer", {"ok": True})
        seen = await asyncio.gather(*following)
        assert seen[0] == seen[1]
        assert [event.type for event in seen[0]] == ALL
        assert seen[0][-1].output == {"ok": True}
        assert seen[0][0].instance_id == "a/1"
        half = seen[0][5].event_id
        rest = [event.type async for event in instance.events(cursor=half)]
        assert rest == ALL[6:]
        with pytest.raises(InvalidArgument, match="no events of type 'nope'"):
            await anext(instance.events(types=["nope"]))
        with pytest.raises(InstanceNotFound):
            await anext(http.instance("Ask", "other").events())


async def test_history_alone_ends_where_it_stands(tmp_path: Path) -> None:
    async with runtime(tmp_path) as (http, _, _):
        instance = await http.create_instance("Ask", "a")
        await waits(instance)
        assert [e.type async for e in instance.events(follow=False)] == UP_TO_WAIT


def frames(raw: bytes) -> list[dict[str, str]]:
    """The frames of a stream, but for comments."""
    told = [part for part in raw.decode().split("\n\n") if part and not part.startswith(":")]
    return [dict(line.split(": ", 1) for line in part.split("\n")) for part in told]


async def test_a_stream_tells_history_and_then_what_happens(tmp_path: Path) -> None:
    async with runtime(tmp_path) as (http, _, url):
        instance = await http.create_instance("Ask", "a/1")
        await waits(instance)
        path = f"{url}/client/v4/accounts/default/workflows/Ask/instances/a%2F1/subscribe"
        headers = {"Authorization": "Bearer t"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(path) as answer:
                assert answer.status == 200
                assert answer.content_type == "text/event-stream"
                raw = await answer.content.readuntil(b"workflow_waiting\n")
                await instance.send_event("answer", 5)
                raw += await answer.content.read()
            told = frames(raw)
            assert [frame["event"] for frame in told] == ALL
            data = [json.loads(frame["data"]) for frame in told]
            assert [str(one["eventId"]) for one in data] == [frame["id"] for frame in told]
            assert data[-1]["output"] == 5
            assert "stepName" not in data[0]
            again = {"Last-Event-ID": told[7]["id"]}
            async with session.get(f"{path}?cursor=1", headers=again) as answer:
                assert [f["event"] for f in frames(await answer.read())] == ALL[8:]
            async with session.get(f"{path}?filter=step_completed,wait_completed") as answer:
                kinds = [f["event"] for f in frames(await answer.read())]
                assert kinds == ["step_completed", "wait_completed"]
            async with session.get(f"{path}?cursor={told[-1]['id']}") as answer:
                assert (answer.status, await answer.read()) == (204, b"")
            for query, status in (("filter=nope", 400), ("cursor=x", 400), ("wait=1s", 400)):
                async with session.get(f"{path}?{query}") as answer:
                    assert answer.status == status
            async with session.get(path.replace("a%2F1", "b")) as answer:
                assert answer.status == 404


async def test_a_client_that_leaves_ends_its_stream(tmp_path: Path) -> None:
    async with runtime(tmp_path) as (http, _, url):
        instance = await http.create_instance("Ask", "a")
        await waits(instance)
        path = f"{url}/client/v4/accounts/default/workflows/Ask/instances/a/subscribe"
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer t"}) as session:
            answer = await session.get(path)
            await answer.content.readuntil(b"workflow_waiting\n")
            answer.close()
        await instance.send_event("answer")
        assert (await instance.wait(20)).success  # and the server closes in good order


async def test_a_consumer_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBSCRIBER_STALL_MAX_MS", 10)
    page = EventPage([InstanceEvent(1, "workflow_queued", 5)], 1, False)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if len(sent) > 1:
            await asyncio.get_running_loop().create_future()

    async def never(cursor: int) -> EventPage:
        raise AssertionError

    await EventStream("a", page, never).send_to(send)
    assert sent == ["http.response.start", "http.response.body"]


async def test_what_goes_wrong_later_is_told_in_the_stream() -> None:
    page = EventPage([InstanceEvent(1, "workflow_queued", 5)], 1, False)
    body = b""

    async def send(message: Any) -> None:
        nonlocal body
        body += message.get("body", b"")

    async def gone(cursor: int) -> EventPage:
        raise InstanceNotFound("deleted meanwhile")

    await EventStream("a", page, gone).send_to(send)
    assert frames(body)[-1]["event"] == "error"
    assert json.loads(frames(body)[-1]["data"])["code"] == "instance.not_found"


async def test_why_says_what_a_queued_and_a_waiting_instance_wait_for(tmp_path: Path) -> None:
    async with runtime(tmp_path, running_max=1) as (http, embedded, _):
        holder = await http.create_instance("Hang", "holder")
        async for event in holder.events(types=["attempt_started"]):
            assert event.step_name == "hang-1"
            break
        running = await holder.why()
        assert [(r.kind, r.name, r.attempt) for r in running.reasons] == [("step", "hang-1", 1)]
        late = [await http.create_instance("Ask", f"late{n}") for n in range(2)]
        places = []
        for client in (http, embedded):
            why = await client.instance("Ask", "late1").why()
            assert why.status == "queued"
            assert [reason.kind for reason in why.reasons] == ["slot"]
            assert why.slot is not None
            places.append(why.slot)
        assert places[0].limited_by == "account"
        await holder.terminate()
        await waits(late[1])
        await late[1].send_event("answr", 1)
        why = await late[1].why()
        assert [(r.kind, r.name, r.event_type) for r in why.reasons] == [
            ("event", "ask-1", "answer")
        ]
        assert why.reasons[0].due is not None
        assert [(b.type, b.count, b.awaited) for b in why.buffered] == [("answr", 1, False)]
        with pytest.raises(InstanceNotFound):
            await http.instance("Ask", "none").why()


def test_the_command_line_follows_and_says_why(plane: Any) -> None:
    plane.router.events = [
        InstanceEvent(1, "workflow_queued", 1_700_000_000_000),
        InstanceEvent(4, "step_completed", 1_700_000_000_005, step="charge-1", output=b'{"ok":1}'),
    ]
    with Served(plane) as toque:
        assert toque("create", "orders", "--id", "a").exit_code == 0
        followed = toque("instances", "describe", "orders", "a", "--follow")
        assert followed.exit_code == 0
        assert [line.split()[2] for line in followed.stdout.splitlines()] == [
            "workflow_queued",
            "step_completed",
        ]
        assert '{"ok":1}' in followed.stdout
        lines = toque("instances", "describe", "orders", "a", "--follow", "--cursor", "1", "--json")
        assert json.loads(lines.stdout)["eventId"] == 4
        why = toque("instances", "why", "orders", "a")
        assert "a is waiting since" in why.stdout
        assert "event ask-1 answer" in why.stdout
        assert "2 events answr" in why.stdout
        assert "nobody asks for them" in why.stdout
        assert json.loads(toque("instances", "why", "orders", "a", "--json").stdout)["id"] == "a"
        assert toque("instances", "why", "orders", "b").exit_code == 4
