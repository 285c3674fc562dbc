"""Logs are quiet at a replay, and each attempt has its span."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.engines.flows import Event, Step
from tests.engines.rig import on_virtual_time, rigged
from toque.engines.logs import QuietOnReplay
from toque.engines.tracing import set_attempt_tracer
from toque.engines.tracing_otel import trace_attempts
from toque.engines.workflow import workflow

pytestmark = pytest.mark.loop(factory=on_virtual_time)
OWN = logging.getLogger("the author's own")


def telling() -> Any:
    """A workflow that logs before, between and within steps, and after a long wait."""

    @workflow(name="telling")
    async def run(event: Event, step: Step) -> None:
        step.log.info("begins")
        OWN.info("own begins")

        def body() -> None:
            step.log.warning("in the body")
            OWN.info("own in the body")

        await step.do("a", body)
        step.log.info("between %s and %s", "a", "b")
        await step.wait_for_event("w", "go")
        step.log.info("after")
        await step.do("b", body)
        OWN.info("own ends")

    return run


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """What was logged, in order."""
    caplog.set_level(logging.INFO)
    quiet = QuietOnReplay()
    OWN.addFilter(quiet)
    names = ("toque.workflow", OWN.name)
    yield lambda: [record for record in caplog.records if record.name in names]
    OWN.removeFilter(quiet)


@pytest.mark.parametrize("crashes", [False, True])
async def test_every_line_is_logged_once(tmp_path: Path, lines: Any, crashes: bool) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(telling())
        await rig.status("waiting")
        if crashes:
            rig.restart("kept")
        await rig.call("send_event", "go", b"1", "e1")
        await rig.ended()
        assert [record.getMessage() for record in lines()] == [
            "begins",
            "own begins",
            "in the body",
            "own in the body",
            "between a and b",
            "after",
            "in the body",
            "own in the body",
            "own ends",
        ]
        view = await rig.view()
        told = [record for record in lines() if record.name == "toque.workflow"]
        assert {(r.workflow, r.instance, r.run) for r in told} == {("telling", "i1", view.run_id)}
        assert [record.step for record in told] == ["", "a-1", "", "", "b-1"]


async def test_an_author_may_add_fields_of_his_own(tmp_path: Path, lines: Any) -> None:
    @workflow(name="fields")
    async def fields(event: Event, step: Step) -> None:
        step.log.info("one", extra={"order": 42})

    async with rigged(tmp_path) as rig:
        await rig.run(fields)
        (line,) = lines()
        assert (line.order, line.workflow) == (42, "fields")


# --- traces -------------------------------------------------------------------------------------


@pytest.fixture
def spans() -> Iterator[Any]:
    """Finished spans, in order of their ends."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_attempts(provider)
    yield exporter.get_finished_spans
    set_attempt_tracer(None)
    provider.shutdown()


async def test_each_attempt_has_one_span_whatever_is_replayed(tmp_path: Path, spans: Any) -> None:
    calls: list[int] = []
    current: list[Any] = []

    @workflow(name="traced")
    async def traced(event: Event, step: Step) -> None:
        async def body() -> None:
            current.append(trace.get_current_span().get_span_context().span_id)
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("once")

        async def slow() -> None:
            await asyncio.sleep(100)

        await step.do("a", body, {"retries": {"limit": 1, "delay": 600}})
        try:
            await step.do("slow", slow, {"retries": {"limit": 0}, "timeout": 5})
        except TimeoutError:
            pass
        late = asyncio.create_task(step.do("late", slow))
        await step.sleep("nap", 1)
        late.cancel()
        await step.sleep("nap", 1)

    async with rigged(tmp_path) as rig:
        await rig.create(traced)
        await rig.status("waiting")
        rig.restart("kept")
        view = await rig.ended()
        assert view.error is None
        told = [(span.name, span.attributes) for span in spans()]
        assert [(name, a["toque.attempt"], a["toque.outcome"]) for name, a in told] == [
            ("step a-1", 1, "errored"),
            ("step a-1", 2, "completed"),
            ("step slow-1", 1, "timed_out"),
            ("step late-1", 1, "cancelled"),
        ]
        first = spans()[0]
        assert first.attributes["toque.instance"] == "i1"
        assert first.attributes["toque.workflow"] == "traced"
        assert first.attributes["toque.run"] == view.run_id
        assert first.attributes["error.type"] == "ValueError"
        assert first.status.status_code is trace.StatusCode.ERROR
        assert current == [s.get_span_context().span_id for s in spans()[:2]]


async def test_nothing_is_traced_unless_asked_for(tmp_path: Path) -> None:
    @workflow(name="plain")
    async def plain(event: Event, step: Step) -> Any:
        return await step.do("a", lambda: trace.get_current_span().get_span_context().is_valid)

    async with rigged(tmp_path) as rig:
        assert await rig.run(plain) is False
