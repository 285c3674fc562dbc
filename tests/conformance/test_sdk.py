"""Cloudflare's own Python SDK drives a server of ours with only its base URL changed.

Every call of `client.workflows`, blocking and async, as it is and with strict validation, in which
the SDK refuses what its types do not say.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from cloudflare import (
    APIResponseValidationError,
    APIStatusError,
    AsyncCloudflare,
    AuthenticationError,
    BadRequestError,
    Cloudflare,
    DefaultAsyncHttpxClient,
    DefaultHttpxClient,
    NotFoundError,
    PermissionDeniedError,
)
from cloudflare.types.workflows import instance_get_response as got

from tests.conformance.served import ACCOUNT, Served, live_server


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Served]:
    """One server for the module and each control plane."""
    data: Path = tmp_path_factory.mktemp("served")
    with live_server(data, request.param) as server:
        yield server


class Mode(NamedTuple):
    """How the SDK is used. `name` keeps the instances of modes apart."""

    kind: type[Cloudflare] | type[AsyncCloudflare]
    strict: bool
    name: str


MODES = [
    Mode(kind, strict, f"{word}-{'strict' if strict else 'plain'}")
    for kind, word in ((Cloudflare, "sync"), (AsyncCloudflare, "async"))
    for strict in (False, True)
]


class Answer(NamedTuple):
    """What the server answered, after how many seconds to ask again, and when."""

    status: int
    retry_after: int
    at: float


class Sdk:
    """The SDK, blocking or async, called alike. `answers`: what it was answered, in order."""

    def __init__(self, client: Any, mode: Mode, answers: list[Answer]) -> None:
        self.client = client
        self.answers = answers
        self.workflows = client.workflows
        self.mode = mode

    def id(self, name: str) -> str:
        """An id of this mode alone; a path."""
        return f"{self.mode.name}/{name}"

    async def __call__(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        result = call(*args, **{"account_id": ACCOUNT, **options})
        return await result if inspect.isawaitable(result) else result

    async def all(self, call: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Everything that a list gives, over all its pages."""
        pages = call(*args, account_id=ACCOUNT, **options)
        if hasattr(pages, "__aiter__"):
            return [each async for each in pages]
        return list(pages)

    async def create(self, workflow: str, name: str, **options: Any) -> Any:
        instances = self.workflows.instances
        return await self(instances.create, workflow, instance_id=self.id(name), **options)

    async def get(self, workflow: str, name: str, wait: str = "0ms", **options: Any) -> Any:
        query = {"wait": wait, "simple": options.pop("simple", "false")}
        instances = self.workflows.instances
        options = {"workflow_name": workflow, "extra_query": query, **options}
        return await self(instances.get, self.id(name), **options)

    async def until(self, workflow: str, name: str, status: str) -> None:
        """Ask until it has that status (by lists, which hold no output)."""
        while True:
            lines = await self.all(self.workflows.instances.list, workflow, status=status)
            if self.id(name) in {line.id for line in lines}:
                return


@asynccontextmanager
async def using(served: Served, mode: Mode, **options: Any) -> AsyncIterator[Sdk]:
    """The SDK against the server."""
    answers: list[Answer] = []

    def note(response: httpx.Response) -> None:
        told = int(response.headers.get("retry-after", 0))
        answers.append(Answer(response.status_code, told, time.monotonic()))

    async def note_async(response: httpx.Response) -> None:
        note(response)

    options = {"api_token": served.token, "max_retries": 0, **options}
    options |= {"base_url": served.base_url, "_strict_response_validation": mode.strict}
    if mode.kind is AsyncCloudflare:
        noting = DefaultAsyncHttpxClient(event_hooks={"response": [note_async]})
        async with AsyncCloudflare(http_client=noting, **options) as client:
            yield Sdk(client, mode, answers)
    else:
        noting_too = DefaultHttpxClient(event_hooks={"response": [note]})
        with Cloudflare(http_client=noting_too, **options) as blocking:
            yield Sdk(blocking, mode, answers)


def cases(plane: str, modes: list[Mode]) -> list[Any]:
    """Each mode over a server whose account is on a control plane."""
    suffix = "" if plane == "v2" else f"-{plane}"
    return [pytest.param(plane, mode, id=f"{mode.name}{suffix}") for mode in modes]


def over(*found: Any) -> Any:
    """Run a test in these cases."""
    return pytest.mark.parametrize(("served", "mode"), found, indirect=["served"])


modes = over(*cases("v2", MODES), *cases("v1", MODES[3:]))
modes_of_v2 = over(*cases("v2", MODES))
plain = over(*cases("v2", MODES[::2]))
"""Where the answers are not what strict validation takes, or it makes no difference."""


def limit(served: Served, workflow: str, creates_per_second: int) -> None:
    """How many instances of a workflow may be made in a second."""
    url = f"{served.url}/toque/v1/accounts/{ACCOUNT}/workflows/{workflow}/limits"
    headers = {"Authorization": f"Bearer {served.token}"}
    body = {"creates_per_second": creates_per_second}
    httpx.patch(url, headers=headers, json=body).raise_for_status()


def codes(error: APIStatusError) -> list[int | None]:
    """The codes that the SDK read from an answer."""
    return [each.code for each in error.errors]


# --- workflows and versions ---------------------------------------------------------------------


@modes
async def test_workflows(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        await sdk.create("Orders", "w", params='"x"')
        found = [each.name for each in await sdk.all(sdk.workflows.list, per_page=2)]
        assert found == ["Ask", "Fail", "Nap", "Orders", "Retry", "Stream"]
        assert [each.name for each in await sdk.all(sdk.workflows.list, search="Ord")] == ["Orders"]
        one = await sdk(sdk.workflows.get, "Orders")
        assert (one.name, one.class_name, one.script_name) == ("Orders", "Orders", "shop_app.py")
        assert one.triggered_on is not None
        assert sum(one.instances.values()) >= 1
        with pytest.raises(NotFoundError) as failed:
            await sdk(sdk.workflows.get, "Nowhere")
        assert codes(failed.value) == [10200]


@modes
async def test_versions(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        versions = sdk.workflows.versions
        (version,) = await sdk.all(versions.list, "Orders")
        assert (version.class_name, version.language, version.has_dag) == ("Orders", "python", True)
        same = await sdk(versions.get, version.id, workflow_name="Orders")
        assert same.model_dump() == version.model_dump()
        made = await sdk.create("Orders", "v", params="1")
        assert made.version_id == version.id
        graph = await sdk(versions.graph, version.id, workflow_name="Orders")
        assert [node.type for node in graph.graph.workflow.nodes] == ["start", "step_do"]
        with pytest.raises(NotFoundError):
            await sdk(versions.get, "none", workflow_name="Orders")


@modes_of_v2  # limits of a workflow need it
async def test_a_workflow_is_registered_changed_and_removed(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        name = mode.name
        named: dict[str, Any] = {"class_name": "Orders", "script_name": "shop_app.py"}
        made = await sdk(sdk.workflows.update, name, **named)
        assert (made.name, made.class_name, made.is_deleted) == (name, "Orders", 0)
        assert made.terminator_running == 0
        kept = {"success_retention": "1 day", "error_retention": 3_600_000}
        options = {"concurrency": {"limit": 5}, "limits": {"steps": 7}, "default_retention": kept}
        changed = await sdk(sdk.workflows.update, name, **options, **named)
        assert changed.id == made.id
        (version,) = await sdk.all(sdk.workflows.versions.list, name)
        assert (version.concurrency.limit, version.limits.steps) == (5, 7)
        told = version.default_retention
        assert (told.success_retention, told.error_retention) == (86_400_000, 3_600_000)
        gone = await sdk(sdk.workflows.delete, name)
        assert gone.status == "ok"
        with pytest.raises(NotFoundError) as missing:
            await sdk(sdk.workflows.get, name)
        assert codes(missing.value) == [10200]


# --- creating -----------------------------------------------------------------------------------


@modes
async def test_create_takes_params_as_text_and_as_they_are(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        made = await sdk.create("Orders", "text", params='{"n": 1}', location_hint="weur")
        assert (made.id, made.status, made.trigger_source) == (sdk.id("text"), "queued", "api")
        kept = {"success_retention": "1 day", "error_retention": 3_600_000}
        await sdk.create("Orders", "object", params={"n": 1}, instance_retention=kept)
        await sdk.create("Orders", "none")
        for name, params in (("text", {"n": 1}), ("object", {"n": 1}), ("none", None)):
            found = await sdk.get("Orders", name, wait="30s")
            assert (found.params, found.output) == (params, f"charged {params}")
        anon = await sdk(sdk.workflows.instances.create, "Orders")
        assert len(anon.id) == 36


@modes
async def test_a_duplicate_is_refused_and_not_asked_for_again(served: Served, mode: Mode) -> None:
    async with using(served, mode, max_retries=5) as sdk:
        await sdk.create("Orders", "twice")
        sdk.answers.clear()
        with pytest.raises(BadRequestError) as failed:
            await sdk.create("Orders", "twice")
        assert codes(failed.value) == [10405]
        assert [answer.status for answer in sdk.answers] == [400]
        with pytest.raises(NotFoundError) as missing:
            await sdk.create("Nowhere", "twice")
        assert codes(missing.value) == [10200]


@plain
async def test_too_many_creates_wait_as_they_are_told(served: Served, mode: Mode) -> None:
    async with using(served, mode, max_retries=5) as sdk:
        name = f"rate-{mode.name}"
        options = {"class_name": "Orders", "script_name": "shop_app.py"}
        await sdk(sdk.workflows.update, name, **options)
        limit(served, name, 1)
        made = [(await sdk.create(name, f"rate{n}")).id for n in range(3)]
        assert made == [sdk.id(f"rate{n}") for n in range(3)]
        waited = [
            (after.at - late.at, late.retry_after)
            for late, after in pairwise(sdk.answers)
            if late.status == 429
        ]
        assert waited
        assert all(seconds >= told >= 1 for seconds, told in waited)
        await sdk(sdk.workflows.delete, name)


@modes
async def test_batches(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        body = [{"instance_id": sdk.id(f"b{n}"), "params": f'{{"n": {n}}}'} for n in range(3)]
        made = await sdk.all(sdk.workflows.instances.bulk, "Ask", body=body)
        assert [each.id for each in made] == [each["instance_id"] for each in body]
        again = await sdk.all(
            sdk.workflows.instances.bulk, "Ask", body=[*body, {"instance_id": sdk.id("b3")}]
        )
        assert [each.id for each in again] == [sdk.id("b3")]


# --- listing ------------------------------------------------------------------------------------


@modes
async def test_lists_show_each_once_and_end(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        instances = sdk.workflows.instances
        mine = [sdk.id(f"l{n}") for n in range(5)]
        await sdk.all(instances.bulk, "Nap", body=[{"instance_id": each} for each in mine])
        options: dict[str, Any] = {"per_page": 2, "direction": "asc"}
        found = [each.id for each in await sdk.all(instances.list, "Nap", **options)]
        assert len(found) == len(set(found))
        assert sorted(each for each in found if each in mine) == mine
        first = await sdk(instances.list, "Nap", **options)
        cursor = first.result_info.model_extra["cursor"]  # the SDK knows pages only
        rest = [each.id for each in await sdk.all(instances.list, "Nap", cursor=cursor, **options)]
        assert [each.id for each in first.result] + rest == found
        assert await sdk.all(instances.list, "Nap", page=99, per_page=100) == []
        (line,) = [one for one in await sdk.all(instances.list, "Nap") if one.id == mine[0]]
        dates = {"date_start": line.created_on, "date_end": line.created_on}
        assert mine[0] in [each.id for each in await sdk.all(instances.list, "Nap", **dates)]
        assert await sdk.all(instances.list, "Nap", status="errored") == []


# --- one instance -------------------------------------------------------------------------------


@modes
async def test_steps_have_the_class_of_their_type(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        await sdk.create("Orders", "steps", params='"a"')
        done = await sdk.get("Orders", "steps", wait="30s", order="asc")
        (step,) = done.steps
        assert isinstance(step, got.StepUnionMember0)
        assert (step.name, step.output, step.success) == ("charge-1", "charged a", True)
        assert (step.config.retries.limit, step.config.retries.delay) == (5, 10_000)
        assert (done.success, done.step_count, done.trigger.source) == (True, 1, "api")
        assert done.error is done.rollback is None
        simple = await sdk.get("Orders", "steps", simple="true")
        assert simple.steps == []


@modes
async def test_open_sleeps_and_waits_tell_their_planned_end(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        for workflow, kind in (("Nap", got.StepUnionMember1), ("Ask", got.StepUnionMember3)):
            await sdk.create(workflow, "open")
            await sdk.until(workflow, "open", "waiting")
            if mode.strict:  # its types say that an instance always has an output
                with pytest.raises(APIResponseValidationError):
                    await sdk.get(workflow, "open")
                continue
            found = await sdk.get(workflow, "open")
            assert (found.status, found.output, found.success) == ("waiting", None, None)
            (step,) = found.steps
            assert isinstance(step, kind)
            assert step.finished is False
            assert (step.end - step.start).total_seconds() == 3600


@modes
async def test_failures_and_rollbacks(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        await sdk.create("Fail", "failed")
        if mode.strict:  # what failed has no output, which its types do not allow
            with pytest.raises(APIResponseValidationError):
                await sdk.get("Fail", "failed", wait="30s")
            return
        found = await sdk.get("Fail", "failed", wait="30s")
        assert (found.status, found.success) == ("errored", False)
        assert (found.error.name, found.error.message) == ("OutOfStock", "no stock")
        assert found.rollback.outcome == "complete"
        assert [step.type for step in found.steps] == ["step", "step", "rollback"]
        assert found.steps[1].attempts[0].error.name == "OutOfStock"
        newest = await sdk.get("Fail", "failed", order="desc")
        assert newest.steps[0].type == "rollback"


@plain
async def test_a_termination_is_the_last_step(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        await sdk.create("Nap", "ended")
        await sdk.until("Nap", "ended", "waiting")
        options: dict[str, Any] = {"workflow_name": "Nap", "status": "terminate"}
        await sdk(sdk.workflows.instances.status.edit, sdk.id("ended"), **options)
        found = await sdk.get("Nap", "ended")
        assert [step.type for step in found.steps] == ["sleep", "termination"]
        assert isinstance(found.steps[1], got.StepUnionMember2)
        assert found.steps[1].trigger.source == "api"
        assert (found.status, found.step_count) == ("terminated", 1)
        newest = await sdk.get("Nap", "ended", order="desc")
        assert newest.steps[0].type == "termination"
        assert (await sdk.get("Nap", "ended", simple="true")).steps == []


@modes
async def test_a_retry_tells_the_delay_in_numbers(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        if mode.strict:
            return  # what has not ended has no output
        for name, params, delay in (("fixed", "null", 3_600_000), ("told", "1", 7_200_000)):
            await sdk.create("Retry", name, params=params)
            await sdk.until("Retry", name, "waiting")
            (step,) = (await sdk.get("Retry", name)).steps
            assert step.success is None
            assert step.attempts[-1].success is False
            assert step.attempts[-1].end is not None
            assert step.config.retries.delay == delay


@modes
async def test_step_outputs(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        await sdk.create("Stream", "out")
        assert (await sdk.get("Stream", "out", wait="30s", simple="true")).output == 2
        instances = sdk.workflows.instances
        options: dict[str, Any] = {"workflow_name": "Stream", "type": "step"}
        secret = await sdk(instances.step, sdk.id("out"), name="secret-1", **options)
        assert (secret.status, secret.output) == ("complete", "[REDACTED]")
        raw = await sdk(instances.with_raw_response.step, sdk.id("out"), name="lines-1", **options)
        content = raw.read()
        content = await content if inspect.isawaitable(content) else content
        assert content == b"one\ntwo\n"
        assert raw.headers["content-type"] == "application/octet-stream"
        with pytest.raises(NotFoundError):
            await sdk(instances.step, sdk.id("out"), name="none-1", **options)


@modes
async def test_outputs_of_what_is_still_open(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:
        instances = sdk.workflows.instances
        await sdk.create("Ask", "step")
        await sdk.create("Retry", "step")
        await sdk.until("Ask", "step", "waiting")
        await sdk.until("Retry", "step", "waiting")
        ask = await sdk(
            instances.step, sdk.id("step"), workflow_name="Ask", name="ask-1", type="waitForEvent"
        )
        assert (ask.status, ask.output, ask.event_type) == ("waiting", None, "answer")
        options: dict[str, Any] = {"workflow_name": "Retry", "name": "try-1", "type": "step"}
        retried = await sdk(instances.step, sdk.id("step"), **options)
        assert (retried.status, retried.output, retried.error.name) == (
            "running", None, "ValueError"
        )  # fmt: skip
        attempt = await sdk(instances.step, sdk.id("step"), attempt=1, **options)
        assert (attempt.status, attempt.error.message) == ("errored", "not yet")


# --- changing -----------------------------------------------------------------------------------


@modes
async def test_statuses(served: Served, mode: Mode) -> None:
    async with using(served, mode) as sdk:

        async def edit(workflow: str, name: str, status: str, **more: Any) -> str:
            options = {"workflow_name": workflow, "status": status, **more}
            call = sdk.workflows.instances.status.edit
            return str((await sdk(call, sdk.id(name), **options)).status)

        await sdk.create("Nap", "s")
        await sdk.until("Nap", "s", "waiting")
        assert await edit("Nap", "s", "pause") == "paused"
        assert await edit("Nap", "s", "resume") == "waiting"
        assert await edit("Nap", "s", "restart") == "queued"
        assert await edit("Nap", "s", "terminate") == "terminated"
        with pytest.raises(BadRequestError) as failed:
            await edit("Nap", "s", "terminate")
        assert codes(failed.value) == [10407]
        await sdk.create("Orders", "s", params='"a"')
        await sdk.get("Orders", "s", wait="30s")
        again = await edit("Orders", "s", "restart", from_={"name": "charge", "count": 1})
        assert again == "queued"
        await sdk.create("Ask", "s")
        assert await edit("Ask", "s", "terminate", rollback=True) in ("terminated", "rollingBack")
        with pytest.raises(NotFoundError) as missing:
            await edit("Nap", "nobody", "pause")
        assert codes(missing.value) == [10400]


@modes
@pytest.mark.parametrize("payload", [{"n": 1}, [1, 2], "text", None], ids=str)
async def test_events(served: Served, mode: Mode, payload: Any) -> None:
    async with using(served, mode) as sdk:
        name = f"event-{type(payload).__name__}"
        await sdk.create("Ask", name)
        sent = await sdk(
            sdk.workflows.instances.events.create,
            "answer",
            workflow_name="Ask",
            instance_id=sdk.id(name),
            body=payload,
        )
        assert sent.instance_id == sdk.id(name)
        if not mode.strict or isinstance(payload, str):  # its types know outputs of text only
            assert (await sdk.get("Ask", name, wait="30s")).output == payload


# --- refusals -----------------------------------------------------------------------------------


@modes
async def test_who_may_not_is_told_so(served: Served, mode: Mode) -> None:
    async with using(served, mode, api_token="wrong") as sdk:
        with pytest.raises(AuthenticationError) as failed:
            await sdk.all(sdk.workflows.list)
        assert codes(failed.value) == [10000]
    async with using(served, mode) as sdk:
        with pytest.raises(PermissionDeniedError) as refused:
            await sdk(sdk.workflows.get, "Orders", account_id="other")
        assert codes(refused.value) == [9109]


def test_no_call_of_the_sdk_is_left_out() -> None:
    """A newer SDK with more calls fails here, so that they are looked at."""

    def calls(resource: Any, path: str) -> Iterator[str]:
        for name, value in inspect.getmembers(type(resource)):
            if name.startswith(("_", "with_")):
                continue
            if isinstance(value, property) or hasattr(value, "func"):
                yield from calls(getattr(resource, name), f"{path}{name}.")
            elif inspect.isfunction(value):
                yield f"{path}{name}"

    client = Cloudflare(api_token="x")
    known = {
        "list", "get", "update", "delete",
        "versions.list", "versions.get", "versions.graph",
        "instances.create", "instances.bulk", "instances.list", "instances.get", "instances.step",
        "instances.status.edit", "instances.events.create",
    }  # fmt: skip
    assert set(calls(client.workflows, "")) == known
    client.close()
