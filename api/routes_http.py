"""The REST routes of workflows and instances, in Cloudflare's shapes.

`dispatch_http` admits and routes; here are the table and its endpoints. A long wait ends when the
client goes away, its token ceases to be valid, or the server drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from functools import lru_cache
from typing import Any, TypeVar

from ..engines.journal import OUTPUT_TYPES
from ..engines.views import EventPage
from ..runtime import limits
from ..runtime.errors import InvalidArgument, Overloaded, ShardUnavailable, ToqueError
from . import requests, shapes, version_shapes, watching_shapes
from .auth import READ, WRITE
from .content_http import Content
from .dispatch_http import ACCOUNT, ClientGone, Request, Route, Send, Streamed
from .listing import ListQuery
from .service import ControlPlane
from .subscribe_http import EventStream
from .workflow_shapes import workflow_shape

T = TypeVar("T")
BASE = ("client", "v4", "accounts", ACCOUNT)
"""What stands before each path of the table."""
_WATCH_AFTER_S = 0.25
"""How long a wait goes on, at least, before its client is watched; twice that at most."""

ROUTES = (
    Route("GET", ("workflows",), "list_workflows", READ),
    Route("GET", ("workflows", "{}"), "get_workflow", READ),
    Route("GET", ("workflows", "{}", "versions"), "list_versions", READ),
    Route("GET", ("workflows", "{}", "versions", "{}"), "get_version", READ),
    Route("GET", ("workflows", "{}", "versions", "{}", "graph"), "get_graph", READ),
    Route("POST", ("workflows", "{}", "instances"), "create_instance", WRITE),
    Route("GET", ("workflows", "{}", "instances"), "list_instances", READ),
    Route("POST", ("workflows", "{}", "instances", "batch"), "create_instances", WRITE),
    Route("PUT", ("workflows", "{}", "instances", "terminate"), "terminate_instances", WRITE),
    Route("POST", ("workflows", "{}", "instances", "batch", "delete"), "delete_instances", WRITE),
    Route("POST", ("workflows", "{}", "instances", "batch", "status"), "change_statuses", WRITE),
    Route("GET", ("workflows", "{}", "instances", "{}"), "get_instance", READ),
    Route("DELETE", ("workflows", "{}", "instances", "{}"), "delete_instance", WRITE),
    Route("PATCH", ("workflows", "{}", "instances", "{}", "status"), "change_status", WRITE),
    Route("GET", ("workflows", "{}", "instances", "{}", "events"), "get_events", READ),
    Route("GET", ("workflows", "{}", "instances", "{}", "step"), "get_step", READ),
    Route("POST", ("workflows", "{}", "instances", "{}", "events", "{}"), "send_event", WRITE),
    Route("GET", ("workflows", "{}", "instances", "{}", "subscribe"), "subscribe", READ),
    Route("GET", ("workflows", "{}", "instances", "{}", "waiting"), "get_waiting", READ),
)


class Routes:
    """The endpoints of the table.

    Args:
        plane: the operations.

    Attributes:
        streams: how many subscriptions are served.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._draining = False
        self._watches: set[_Watch] = set()
        self._looking: asyncio.TimerHandle | None = None
        self.streams = 0

    def drain(self) -> None:
        """End long waits: their callers are told to ask again."""
        self._draining = True
        for watch in list(self._watches):
            watch.give_up(_draining())

    # --- endpoints ---

    async def _list_workflows(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("page", "per_page", "search"))
        page, per_page = requests.parse_page(query)
        found, total = await self._plane.list_workflows(
            request.account, search=query.get("search", ""), page=page, per_page=per_page
        )
        info = shapes.list_info(len(found), per_page, total, page, None)
        return shapes.answer_list([workflow_shape(item) for item in found], info)

    async def _get_workflow(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        found = await self._plane.get_workflow(request.account, request.words[0])
        return shapes.answer(workflow_shape(found))

    async def _list_versions(self, request: Request) -> bytes:
        page, per_page = requests.parse_page(
            requests.parse_query(request.query, ("page", "per_page"))
        )
        found, total = await self._plane.versions.page(
            request.account, request.words[0], page=page, per_page=per_page
        )
        info = shapes.list_info(len(found), per_page, total, page, None)
        return shapes.answer_list([version_shapes.version_shape(each) for each in found], info)

    async def _get_version(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        found = await self._plane.versions.get(request.account, *request.words)
        return shapes.answer(version_shapes.version_shape(found))

    async def _get_graph(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        found = await self._plane.versions.get(request.account, *request.words)
        return shapes.answer(version_shapes.version_graph_shape(found))

    async def _create_instance(self, request: Request) -> bytes:
        wait_ms = _wait_in(request.query)
        new = requests.parse_create(await request.body())
        work = self._plane.create_instance(
            request.account,
            request.words[0],
            instance_id=new.instance_id,
            params=new.params,
            wait_ms=wait_ms,
            retention=new.retention,
            request_id=request.key,
        )
        if not wait_ms:
            return shapes.answer(shapes.created(await work))
        view = await self._while_there(request, work)
        return shapes.answer(shapes.created_and_waited(view))

    async def _create_instances(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        items = requests.parse_batch(await request.body(limits.BATCH_BODY_BYTES_MAX))
        result = await self._plane.create_instances(
            request.account, request.words[0], items, request_id=request.key
        )
        return shapes.answer_batch(result)

    async def _list_instances(self, request: Request) -> bytes:
        query = requests.parse_list(request.query)
        found = await self._plane.list_instances(request.account, request.words[0], query)
        return shapes.answer_instances(found)

    async def _get_instance(self, request: Request) -> bytes:
        query = requests.parse_query(
            request.query, ("order", "simple", "wait", "steps", "payload_bytes")
        )
        wait_ms = _wait_of(query)
        payload_max = requests.parse_int(query, "payload_bytes", None)
        workflow, instance_id = request.words
        work = self._plane.get_instance(
            request.account,
            workflow,
            instance_id,
            with_steps=requests.parse_choice(query, "simple", ("false", "true")) == "false",
            newest_first=requests.parse_choice(query, "order", ("asc", "desc")) == "desc",
            steps_max=requests.parse_int(query, "steps", 0) or 0,
            wait_ms=wait_ms,
        )
        view = await (self._while_there(request, work) if wait_ms else work)
        return shapes.answer(shapes.detail(view, payload_max))

    async def _change_status(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        change = requests.parse_status(await request.body())
        workflow, instance_id = request.words
        view = await self._plane.change_status(
            request.account, workflow, instance_id, change, request_id=request.key
        )
        timestamp = shapes.iso(self._plane.clock.now_ms())
        return shapes.answer(shapes.StatusChanged(view.status, timestamp))

    async def _change_statuses(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        asked = requests.parse_statuses(await request.body())
        account, workflow = request.account, request.words[0]
        if isinstance(asked.which, ListQuery):
            done, cursor = await self._plane.change_matching(
                account, workflow, asked.which, asked.change, request_id=request.key
            )
            return shapes.answer(shapes.statuses_changed(done, cursor))
        done = await self._plane.change_many(
            account, workflow, asked.which, asked.change, request_id=request.key
        )
        return shapes.answer(shapes.statuses_changed(done))

    async def _delete_instances(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        which = requests.parse_selection(await request.body())
        account, workflow = request.account, request.words[0]
        if isinstance(which, ListQuery):
            done, cursor = await self._plane.delete_matching(
                account, workflow, which, request_id=request.key
            )
            return shapes.answer(shapes.instances_deleted(done, cursor))
        done = await self._plane.delete_many(account, workflow, which, request_id=request.key)
        return shapes.answer(shapes.instances_deleted(done))

    async def _delete_instance(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        workflow, instance_id = request.words
        await self._plane.delete_instance(
            request.account, workflow, instance_id, request_id=request.key
        )
        return shapes.answer(shapes.Deleted(instance_id))

    async def _terminate_instances(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("status",))
        statuses = requests.parse_selected(query["status"]) if "status" in query else []
        begun = await self._plane.terminate_all(request.account, request.words[0], statuses)
        return shapes.answer(shapes.Begun("ok" if begun else "already_running"))

    async def _send_event(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        payload = await request.body()
        workflow, instance_id, event_type = request.words
        sent_ms = await self._plane.send_event(
            request.account,
            workflow,
            instance_id,
            event_type,
            payload or b"null",
            request_id=request.key,
        )
        return shapes.answer(shapes.EventSent(instance_id, shapes.iso(sent_ms)))

    async def _get_events(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("cursor", "filter", "limit", "wait"))
        work = self._events(
            request,
            requests.parse_int(query, "cursor", 0) or 0,
            requests.parse_words(query, "filter"),
            _wait_of(query),
            requests.parse_int(query, "limit", limits.EVENTS_PAGE_MAX) or 0,
        )
        return shapes.answer(watching_shapes.page_shape(await work, request.words[1]))

    async def _get_step(self, request: Request) -> bytes | Content:
        query = requests.parse_query(request.query, ("name", "type", "attempt", "as"))
        name = query.get("name", "")
        if not name:
            raise InvalidArgument("name is missing; give a step's public name: ?name=fetch-1")
        kind = requests.parse_choice(query, "type", tuple(OUTPUT_TYPES))
        attempt = requests.parse_int(query, "attempt", 0) or 0
        account, (workflow, instance_id) = request.account, request.words
        found = await self._plane.step_output(
            account, workflow, instance_id, name, kind=kind, attempt=attempt
        )
        size = found.stream_size
        if size is None or requests.parse_choice(query, "as", ("content", "json")) == "json":
            return shapes.answer(shapes.step_output(found))
        parts = self._plane.stream(account, workflow, instance_id, name, size)
        first = await anext(parts, b"")
        return Content(first, _while_valid(request, parts), size, shapes.stream_name(found))

    async def _subscribe(self, request: Request) -> Streamed:
        query = requests.parse_query(request.query, ("cursor", "filter"))
        types = requests.parse_words(query, "filter")
        cursor = max(requests.parse_int(query, "cursor", 0) or 0, request.last_event)

        async def next_page(cursor: int) -> EventPage:
            page = await self._events(request, cursor, types, limits.SUBSCRIBER_QUIET_MS)
            await request.check_still()
            return page

        first = await self._events(request, cursor, types, 0)
        if self.streams >= limits.SUBSCRIPTIONS_MAX:
            raise Overloaded(f"{self.streams} subscriptions are served here.")
        return _Counted(self, EventStream(request.words[1], first, next_page))

    async def _events(
        self,
        request: Request,
        cursor: int,
        types: tuple[str, ...],
        wait_ms: int,
        limit: int = limits.EVENTS_PAGE_MAX,
    ) -> EventPage:
        workflow, instance_id = request.words
        work = self._plane.watching.events(
            request.account,
            workflow,
            instance_id,
            cursor=cursor,
            types=types,
            limit=limit,
            wait_ms=wait_ms,
        )
        return await (self._while_there(request, work) if wait_ms else work)

    async def _get_waiting(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        workflow, instance_id = request.words
        view, slot = await self._plane.watching.waiting(request.account, workflow, instance_id)
        return shapes.answer(watching_shapes.waiting_shape(instance_id, view, slot))

    async def _while_there(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """The result of a long wait, unless it is given up; see the module's description."""
        if self._draining:
            work.close()
            raise _draining()
        loop = asyncio.get_running_loop()
        watch = _Watch(request, loop)
        self._watches.add(watch)
        if self._looking is None:
            self._looking = loop.call_later(_WATCH_AFTER_S, self._look)
        try:
            return await work
        except asyncio.CancelledError:
            if watch.reason is None:
                raise
            watch.task.uncancel()
            raise watch.reason from None
        finally:
            watch.stop()
            self._watches.discard(watch)

    def _look(self) -> None:
        """Start to watch those that have waited for a while. One timer does for all."""
        self._looking = None
        for watch in self._watches:
            watch.look()
        if self._watches:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(_WATCH_AFTER_S, self._look)


async def _while_valid(request: Request, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The parts, for as long as the request's token is valid: it is looked at now and then."""
    loop = asyncio.get_running_loop()
    looked_at = loop.time()
    async for part in parts:
        if (loop.time() - looked_at) * 1000 >= limits.TOKEN_CHECK_MS:
            looked_at = loop.time()
            await request.check_still()
        yield part


class _Counted:
    """A stream of events, counted while it is served."""

    def __init__(self, routes: Routes, stream: EventStream) -> None:
        self._routes = routes
        self._stream = stream

    async def send_to(self, send: Send) -> None:
        """Send it."""
        self._routes.streams += 1
        try:
            await self._stream.send_to(send)
        finally:
            self._routes.streams -= 1


class _Watch:
    """Ends a request's wait from outside. It is the current task's, made within it."""

    __slots__ = ("_is_old", "_loop", "_request", "_watching", "reason", "task")

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task()
        assert task is not None  # requests are tasks
        self.task: asyncio.Task[Any] = task
        self.reason: BaseException | None = None
        self._request = request
        self._loop = loop
        self._is_old = False
        self._watching: list[asyncio.Task[None]] = []

    def look(self) -> None:
        """From the second time on, look out for what ends it: short waits cost nothing."""
        if self._is_old and not self._watching:
            watching = self._watch_client(), self._watch_token()
            self._watching = [self._loop.create_task(each) for each in watching]
        self._is_old = True

    async def _watch_client(self) -> None:
        await self._request.gone()
        self.give_up(ClientGone())

    async def _watch_token(self) -> None:
        try:
            while True:
                await asyncio.sleep(limits.TOKEN_CHECK_MS / 1000)
                await self._request.check_still()
        except ToqueError as error:
            self.give_up(error)

    def give_up(self, reason: BaseException) -> None:
        """End the wait; its request raises `reason`."""
        if self.reason is None:
            self.reason = reason
            self.task.cancel()

    def stop(self) -> None:
        """Look out no more."""
        for each in self._watching:
            each.cancel()


def _draining() -> ShardUnavailable:
    return ShardUnavailable("the server is shutting down; ask again.")


def _wait_of(query: dict[str, str]) -> int:
    text = query.get("wait")
    return 0 if text is None else requests.parse_duration(text, "wait")


@lru_cache(maxsize=64)
def _wait_in(query: bytes) -> int:
    """The time to wait of a query that may hold nothing else; most callers ask for the same."""
    return _wait_of(requests.parse_query(query, ("wait",)))
