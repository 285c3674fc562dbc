"""The port for traces: told of each attempt of a step when its body begins, and when it has ended.

Only attempts that really run are told, so nothing is traced at a replay. Set once per process, in
the app's file; `tracing_otel` implements it for OpenTelemetry.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import NamedTuple, Protocol

from .failures import RecordedError
from .logs import Whose
from .run_port import Around

Finish = Callable[[RecordedError | None, str], None]
"""`(error, outcome)`: `completed`, `errored`, `timed_out` or `cancelled`."""


class Attempted(NamedTuple):
    """What runs."""

    whose: Whose
    step: str
    attempt: int


class AttemptTracer(Protocol):
    """See the module's description."""

    def begin(self, attempted: Attempted, context: contextvars.Context) -> Finish:
        """A body begins in `context`, which may be added to; call what is given at its end."""

    def around(self, context: contextvars.Context) -> Around | None:
        """What is to be entered around a body that runs as a task in another process.

        It is pickled: it carries names of the trace, and no tracer. None: nothing.
        """


class _Chosen:
    tracer: AttemptTracer | None = None


def set_attempt_tracer(tracer: AttemptTracer | None) -> None:
    """Trace attempts of this process from now on; None: no more."""
    _Chosen.tracer = tracer


def begin_attempt(
    whose: Whose, step: str, attempt: int, context: contextvars.Context
) -> Finish | None:
    """Tell the tracer, if there is one."""
    tracer = _Chosen.tracer
    return None if tracer is None else tracer.begin(Attempted(whose, step, attempt), context)


def around_of(context: contextvars.Context) -> Around | None:
    """Ask the tracer, if there is one, what to enter around the body of a task."""
    ask = getattr(_Chosen.tracer, "around", None)  # tracers of before have none
    found: Around | None = None if ask is None else ask(context)
    return found
