"""toque: durable workflows and their control plane, for Python on Ray.

The names that users import; nothing else lives here. Each is fetched from its own module when it
is first used, so `import toque` is quick and brings neither Ray nor an HTTP library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.client import Client, Instance, InstanceStatus
    from .api.client_blocking import BlockingClient, BlockingInstance, connect_blocking
    from .api.client_http import connect
    from .api.wiring import embedded
    from .engines.body_call import StepContext
    from .engines.child_steps import Child
    from .engines.config import Retries, StepConfig
    from .engines.events import ReceivedEvent
    from .engines.failures import (
        ChildFailed,
        ChildIdTaken,
        ChildNotStarted,
        ChildWorkflowNotFound,
        EventTimeout,
        JoinEmpty,
        JoinStarved,
        NonRetryableError,
        PayloadMismatch,
        RetryDelayFailed,
        StepDeadline,
        StepFailed,
        StepInterrupted,
        StepTimeout,
        TooManyChildren,
    )
    from .engines.logs import QuietOnReplay
    from .engines.step import WorkflowStep
    from .engines.streams import Stream
    from .engines.workflow import WorkflowEntrypoint, WorkflowEvent, workflow
    from .runtime.entity import DurableObject
    from .runtime.errors import (
        AuthorError,
        BatchIncomplete,
        CallerError,
        InstanceAlreadyExists,
        InstanceFailed,
        InstanceFinished,
        InstanceNotFound,
        InvalidArgument,
        InvalidTransition,
        OutcomeUnknown,
        Overloaded,
        ServerUnreachable,
        SystemFault,
        ToqueError,
        WorkflowNotFound,
    )

_HOMES = {
    "api.client": ("Client", "Instance", "InstanceStatus"),
    "api.client_blocking": ("BlockingClient", "BlockingInstance", "connect_blocking"),
    "api.client_http": ("connect",),
    "api.wiring": ("embedded",),
    "engines.config": ("Retries", "StepConfig"),
    "engines.child_steps": ("Child",),
    "engines.failures": (
        "ChildFailed",
        "ChildIdTaken",
        "ChildNotStarted",
        "ChildWorkflowNotFound",
        "EventTimeout",
        "JoinEmpty",
        "JoinStarved",
        "NonRetryableError",
        "PayloadMismatch",
        "RetryDelayFailed",
        "StepDeadline",
        "StepFailed",
        "StepInterrupted",
        "StepTimeout",
        "TooManyChildren",
    ),
    "engines.events": ("ReceivedEvent",),
    "engines.streams": ("Stream",),
    "engines.logs": ("QuietOnReplay",),
    "engines.body_call": ("StepContext",),
    "engines.step": ("WorkflowStep",),
    "engines.workflow": ("WorkflowEntrypoint", "WorkflowEvent", "workflow"),
    "runtime.entity": ("DurableObject",),
    "runtime.errors": (
        "AuthorError",
        "BatchIncomplete",
        "CallerError",
        "InstanceAlreadyExists",
        "InstanceFailed",
        "InstanceFinished",
        "InstanceNotFound",
        "InvalidArgument",
        "InvalidTransition",
        "OutcomeUnknown",
        "Overloaded",
        "ServerUnreachable",
        "SystemFault",
        "ToqueError",
        "WorkflowNotFound",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AuthorError",
    "BatchIncomplete",
    "BlockingClient",
    "BlockingInstance",
    "CallerError",
    "Child",
    "ChildFailed",
    "ChildIdTaken",
    "ChildNotStarted",
    "ChildWorkflowNotFound",
    "Client",
    "DurableObject",
    "EventTimeout",
    "Instance",
    "InstanceAlreadyExists",
    "InstanceFailed",
    "InstanceFinished",
    "InstanceNotFound",
    "InstanceStatus",
    "InvalidArgument",
    "InvalidTransition",
    "JoinEmpty",
    "JoinStarved",
    "NonRetryableError",
    "OutcomeUnknown",
    "Overloaded",
    "PayloadMismatch",
    "QuietOnReplay",
    "ReceivedEvent",
    "Retries",
    "RetryDelayFailed",
    "ServerUnreachable",
    "StepConfig",
    "StepContext",
    "StepDeadline",
    "StepFailed",
    "StepInterrupted",
    "StepTimeout",
    "Stream",
    "SystemFault",
    "TooManyChildren",
    "ToqueError",
    "WorkflowEntrypoint",
    "WorkflowEvent",
    "WorkflowNotFound",
    "WorkflowStep",
    "connect",
    "connect_blocking",
    "embedded",
    "workflow",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'toque' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
