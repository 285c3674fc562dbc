"""Workflows as the API shows them.

The envelope around them, and how times are written: see `shapes`.
"""

from __future__ import annotations

import msgspec

from ..gatekeeper.messages import WorkflowRecord
from .service import WorkflowInfo
from .shapes import iso


class WorkflowShape(msgspec.Struct, frozen=True):
    """A workflow. `instances` counts by status; counts stop at a bound and are then minima.

    `triggered_on` is when the newest instance that is still kept was made.
    """

    id: str
    name: str
    class_name: str
    script_name: str
    created_on: str
    modified_on: str
    triggered_on: str | None
    instances: dict[str, int]
    version_id: str


def workflow_shape(info: WorkflowInfo) -> WorkflowShape:
    """A workflow with its counts."""
    record: WorkflowRecord = info.record
    return WorkflowShape(
        record.uuid,
        record.name,
        record.class_name,
        record.script_name,
        iso(record.created_ms),
        iso(record.modified_ms),
        None if info.triggered_ms is None else iso(info.triggered_ms),
        info.counts,
        record.version_id,
    )
