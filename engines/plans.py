"""The plan of a run, made from an instance's rows.

Pure: for its Engine, and for who replays a history (`testkit.replaying`).
"""

from __future__ import annotations

from .failures import FAILED, RecordedError
from .journal import Instance, Record
from .run_port import Plan


def plan_of(
    key: str,
    instance: Instance,
    records: list[Record],
    *,
    params: bytes,
    events: list[tuple[int, str, int]],
    now_ms: int,
    blobs: str,
    cut_off: str = "",
) -> Plan:
    """See `Plan`, whose attributes these are."""
    return Plan(
        key,
        instance.is_apart,
        instance.run_id,
        instance.workflow,
        instance.code_hash,
        instance.created_ms,
        instance.started_ms or now_ms,
        now_ms,
        params,
        records,
        events,
        instance.pauses,
        instance.lineage_run,
        instance.forked,
        undo_error(instance),
        instance.cancel_ms > 0,
        blobs,
        instance.steps_max,
        instance.class_name,
        cut_off,
    )


def undo_error(instance: Instance) -> RecordedError | None:
    """What handlers of a rollback are given; None: the instance does not roll back."""
    if instance.status != "rollingBack":
        return None
    return instance.error or RecordedError(FAILED, "Terminated", "the instance is terminated")
