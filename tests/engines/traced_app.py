"""Workflows of `worker_app`, traced, and one that tells in which traces its bodies are."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import toque
from tests.engines import worker_app
from toque.engines.tracing_otel import trace_attempts

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace_attempts(provider)


class Heavy(worker_app.Heavy):
    """See there."""


class Where(worker_app.Where):
    """See there."""


class Clinging(worker_app.Clinging):
    """See there."""


class Streaming(worker_app.Streaming):
    """See there."""


class StreamingTasks(worker_app.StreamingTasks):
    """See there."""


def current() -> list[int]:
    """The trace and the span that this code is in."""
    context = trace.get_current_span().get_span_context()
    return [context.trace_id, context.span_id]


async def current_async() -> list[int]:
    """The same, of an asynchronous body."""
    return current()


def exported() -> list[list[Any]]:
    """The spans that have ended in this process."""
    return [
        [span.name, span.context.trace_id, span.context.span_id]
        for span in spans.get_finished_spans()
    ]


class Traced(toque.WorkflowEntrypoint):
    """Tells the spans of its bodies, as they see them and as they were exported."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        half = {"num_cpus": 0.5}
        here = await step.do("here", current)
        task = await step.do("task", current, ray_options=half)
        task_async = await step.do("async", current_async, ray_options=half)
        return [here, task, task_async, await step.do("exported", exported)]
