"""What the routes of scripts and of workflows' registration take and give.

Scripts are toque's own; registrations are as Cloudflare's clients know them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..gatekeeper.messages import (
    Deployed,
    DeployedWorkflow,
    LimitsChange,
    ScriptRecord,
    WorkflowRecord,
)
from ..runtime.codec import Whole
from .deploys import Scripts
from .requests import RetentionBody, kept_ms
from .shapes import iso


class DeployedShape(msgspec.Struct, frozen=True):
    """A workflow of a script. `id`: its uuid; `is_new`: the deploy made a new version of it."""

    name: str
    class_name: str
    version_id: str
    id: str
    is_new: bool


class DeployShape(msgspec.Struct, frozen=True):
    """What a deploy has done. `left`: names of the script that its code has no more."""

    script: str
    code_hash: str
    workflows: list[DeployedShape]
    left: list[str]
    created_on: str
    modified_on: str


class ScriptShape(msgspec.Struct, frozen=True):
    """A script and the workflows that belong to it."""

    script: str
    code_hash: str
    created_on: str
    modified_on: str
    workflows: list[DeployedShape]


class ConcurrencyBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many instances of a workflow may run."""

    limit: Whole


class StepsBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many steps an instance may have."""

    steps: Whole | None = None


class WorkflowBody(msgspec.Struct, forbid_unknown_fields=True):
    """A workflow's registration, as Cloudflare's clients send it."""

    class_name: str
    script_name: str
    concurrency: ConcurrencyBody | None = None
    default_retention: RetentionBody | None = None
    limits: StepsBody | None = None
    schedules: list[Any] | None = None


class RegisteredShape(msgspec.Struct, frozen=True):
    """A workflow that was registered, as Cloudflare's API tells of it."""

    id: str
    name: str
    class_name: str
    script_name: str
    created_on: str
    modified_on: str
    triggered_on: str | None
    version_id: str
    is_deleted: int
    terminator_running: int


class OkShape(msgspec.Struct, frozen=True):
    """Done."""

    status: str = "ok"


def limits_of(body: WorkflowBody) -> LimitsChange:
    """The change of limits that comes with a registration; what is left out stays."""
    kept = body.default_retention or RetentionBody()
    given: dict[str, Any] = {
        "running_max": body.concurrency.limit if body.concurrency is not None else None,
        "steps": body.limits.steps if body.limits is not None else None,
        "success_retention_ms": kept_ms(kept.success_retention, "success_retention"),
        "error_retention_ms": kept_ms(kept.error_retention, "error_retention"),
    }
    return LimitsChange(**{name: value for name, value in given.items() if value is not None})


def deploy_shape(found: Deployed) -> DeployShape:
    """The answer to a deploy."""
    return DeployShape(
        found.script.script,
        found.script.code_hash,
        [_workflow(each.record, each.is_new) for each in found.workflows],
        found.left,
        iso(found.script.created_ms),
        iso(found.script.modified_ms),
    )


def script_shapes(found: Scripts) -> list[ScriptShape]:
    """All scripts."""
    return [_script(script, found.workflows) for script in found.scripts]


def registered_shape(found: DeployedWorkflow, *, is_clearing: bool) -> RegisteredShape:
    """The answer to a registration."""
    record = found.record
    return RegisteredShape(
        record.uuid,
        record.name,
        record.class_name,
        record.script_name,
        iso(record.created_ms),
        iso(record.modified_ms),
        None,
        record.version_id,
        0,
        int(is_clearing),
    )


def _script(script: ScriptRecord, workflows: list[WorkflowRecord]) -> ScriptShape:
    own = [_workflow(each, False) for each in workflows if each.script_name == script.script]
    return ScriptShape(
        script.script, script.code_hash, iso(script.created_ms), iso(script.modified_ms), own
    )


def _workflow(record: WorkflowRecord, is_new: bool) -> DeployedShape:
    return DeployedShape(record.name, record.class_name, record.version_id, record.uuid, is_new)
