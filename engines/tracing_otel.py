"""OpenTelemetry: a span for each attempt of a step. Needs the extra `otel` (the API only).

    # in the app's file, after the SDK was set up:
    from toque.engines.tracing_otel import trace_attempts
    trace_attempts()

A span is called `step <name>`, has the attributes `toque.workflow`, `toque.instance`, `toque.run`,
`toque.step`, `toque.attempt` and `toque.outcome`, and is the current span in the body, so that
what the body calls is its child; also in a body that runs as a Ray task, whose process needs an SDK
of its own to export more spans. Nothing is traced at a replay.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from functools import partial

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .failures import RecordedError
from .run_port import Around
from .tracing import Attempted, Finish, set_attempt_tracer

# W3C's, and not the global one: the process of a task has not run the app's file.
_CARRIED = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


class OtelTracer:
    """See the module's description.

    Args:
        provider: None: the global one.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("toque", tracer_provider=provider)

    def begin(self, attempted: Attempted, context: contextvars.Context) -> Finish:
        whose = attempted.whose
        span = self._tracer.start_span(
            f"step {attempted.step}",
            context=otel_context.Context(),  # attempts have no parent: the instance outlives spans
            attributes={
                "toque.workflow": whose.workflow,
                "toque.instance": whose.instance,
                "toque.run": whose.run,
                "toque.step": attempted.step,
                "toque.attempt": attempted.attempt,
            },
        )
        context.run(_attach, span)

        def finish(error: RecordedError | None, outcome: str) -> None:
            span.set_attribute("toque.outcome", outcome)
            if error is not None:
                span.set_attribute("error.type", error.name)
                span.set_status(trace.StatusCode.ERROR, error.message)
            span.end()

        return finish

    def around(self, context: contextvars.Context) -> Around | None:
        """See `tracing.AttemptTracer`: the body of a task is in the span of its attempt, too."""
        carrier: dict[str, str] = {}
        context.run(_CARRIED.inject, carrier)
        return partial(_within, carrier) if carrier else None


@contextlib.contextmanager
def _within(carrier: dict[str, str]) -> Iterator[None]:
    """In the task: what `around` has carried there is current."""
    token = otel_context.attach(_CARRIED.extract(carrier))
    try:
        yield
    finally:
        otel_context.detach(token)


def _attach(span: trace.Span) -> None:
    otel_context.attach(trace.set_span_in_context(span))


def trace_attempts(provider: trace.TracerProvider | None = None) -> None:
    """Trace the attempts of this process."""
    set_attempt_tracer(OtelTracer(provider))
