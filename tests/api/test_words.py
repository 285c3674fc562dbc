"""What people are told of their mistakes, in the program itself and by the client."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import toque
from toque.api.apps import App
from toque.api.requests import parse_create, parse_selection
from toque.engines.failures import StepNotFound
from toque.runtime.errors import InstanceFailed, InvalidArgument, RuntimeClosed, WorkflowLoadError


@toque.workflow
async def hello(event: Any, step: Any) -> Any:
    if event.payload == "raise":
        raise KeyError("nokey")
    if event.payload == "wait":
        await step.wait_for_event("first", "go")
    return event.payload


def other(name: str = "hello") -> Any:
    @toque.workflow(name=name)
    async def second(event: Any, step: Any) -> Any:
        return 2

    return second


async def test_two_workflows_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkflowLoadError, match="has the name 'hello', as hello has"):
        async with toque.embedded(tmp_path, [hello, other()]):
            pass
    async with toque.embedded(tmp_path, [hello, hello, other("second")]) as runtime:
        assert (await runtime.client().run_instance("second")).output == 2


def test_a_class_without_run_is_told_so(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    text = (
        "import toque\n\nclass Order(toque.WorkflowEntrypoint):\n    async def go(self, e, s): ..."
    )
    app.write_text(text)
    with pytest.raises(WorkflowLoadError, match=r"^Order has no `run`\. Right: `async def run"):
        App.from_file(app)
    app.write_text("x = 1\n")
    with pytest.raises(WorkflowLoadError, match="defines no workflow"):
        App.from_file(app)


async def test_a_client_whose_runtime_is_closed_is_told_at_once(tmp_path: Path) -> None:
    async with toque.embedded(tmp_path, [hello]) as runtime:
        client = runtime.client()
        handle = await client.create_instance("hello", "one", wait=10)
    began = asyncio.get_running_loop().time()
    for call in (
        client.create_instance("hello"),
        handle.status(),
        client.create_instances("hello", [{}]),
    ):
        with pytest.raises(RuntimeClosed, match="use its client inside `async with`"):
            await call
    assert asyncio.get_running_loop().time() - began < 5


async def test_what_the_client_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with toque.embedded(tmp_path, [hello]) as runtime:
        client = runtime.client()
        wrong: Any = hello
        with pytest.raises(InvalidArgument, match=r"its name.*Right: 'hello'"):
            await client.create_instance(wrong)
        done = await client.run_instance("hello", "one", {"n": 1})
        whole = await (await client.get_instance("hello", "one")).status()
        assert done.version_id == whole.version_id != ""
        assert (done.params, whole.params) == ({"n": 1}, {"n": 1})
        with pytest.raises(TimeoutError, match=r"'two' .* had not ended after 0\.05 s; it is wait"):
            await client.run_instance("hello", "two", "wait", timeout=0.05)
        two = await client.get_instance("hello", "two")
        with pytest.raises(StepNotFound, match='"count": 1, "type": "waitForEvent"}'):
            await two.restart(from_step="first")
        await two.terminate()
        with pytest.raises(InstanceFailed, match=r"^instance 'two' is terminated$"):
            await two.output()
        with pytest.raises(InstanceFailed, match="errored: KeyError: 'nokey'"):
            await client.run_instance("hello", "three", "raise")
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert any("ended with an error" in record.getMessage() and record.exc_info for record in told)
    assert not any("Whose" in record.getMessage() for record in told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"filter":{"stat":1}}', "fields of 'filter': status, prefix, date_start, date_end."),
        (b'{"filter":{"prefix":1}}', "fields of 'filter': status, prefix, date_start, date_end."),
        (b'{"fitler":1}', "Known fields: instances, filter, cursor, limit."),
    ],
)
def test_known_fields_are_those_of_the_object_at_fault(body: bytes, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_selection(body)
    assert told in refused.value.message


def test_known_fields_of_a_create() -> None:
    with pytest.raises(InvalidArgument, match="'instance_retention': success_retention, error_"):
        parse_create(b'{"instance_retention":{"success":1}}')
