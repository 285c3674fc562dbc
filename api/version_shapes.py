"""How versions look in JSON: as in Cloudflare's API, every field there in every answer.

A graph is `null` where the code of a version is not at hand, and `has_dag` says so beforehand.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .shapes import iso
from .versions import VersionInfo


class ConcurrencyShape(msgspec.Struct, frozen=True):
    """How many instances of a workflow may run; null: only the account's limit holds."""

    limit: int | None


class RetentionShape(msgspec.Struct, frozen=True):
    """How long its instances are kept, in milliseconds; null: as its account or the server says."""

    success_retention: int | None
    error_retention: int | None


class StepsShape(msgspec.Struct, frozen=True):
    """How many steps an instance may make; null: as its code or the server says."""

    steps: int | None


class VersionShape(msgspec.Struct, frozen=True):
    """A version of a workflow. `has_dag`: there is a graph of its steps.

    Limits are the workflow's: all its versions tell them as they are now.
    """

    id: str
    class_name: str
    created_on: str
    modified_on: str
    workflow_id: str
    has_dag: bool
    language: Literal["python"]
    concurrency: ConcurrencyShape
    default_retention: RetentionShape
    limits: StepsShape


class GraphWorkflow(msgspec.Struct, frozen=True):
    """What a workflow does: `nodes` in order, each with a `type`; `functions` that they call."""

    class_name: str
    functions: dict[str, dict[str, Any]]
    nodes: list[dict[str, Any]]
    payload: dict[str, Any]


class GraphShape(msgspec.Struct, frozen=True):
    """The graph of a workflow's steps."""

    version: int
    workflow: GraphWorkflow


class VersionGraphShape(VersionShape, frozen=True, kw_only=True):
    """A version with its graph."""

    graph: GraphShape | None


def version_shape(info: VersionInfo) -> VersionShape:
    """A version."""
    return VersionShape(**_fields(info))


def version_graph_shape(info: VersionInfo) -> VersionGraphShape:
    """A version with its graph."""
    graph = None if info.graph is None else msgspec.convert(info.graph, GraphShape)
    return VersionGraphShape(**_fields(info), graph=graph)


def _fields(info: VersionInfo) -> dict[str, Any]:
    created_on = iso(info.record.created_ms)
    return {
        "id": info.record.version_id,
        "class_name": info.record.class_name,
        "created_on": created_on,
        "modified_on": created_on,
        "workflow_id": info.workflow.uuid,
        "has_dag": info.graph is not None,
        "language": "python",
        "concurrency": ConcurrencyShape(info.workflow.running_max or None),
        "default_retention": RetentionShape(
            info.settings.success_retention_ms, info.settings.error_retention_ms
        ),
        "limits": StepsShape(info.settings.steps),
    }
