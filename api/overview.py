"""How an account does just now, from the figures that its shards keep anyway. Pure.

Figures are gathered for all accounts at once, a few times a second at most however many ask; what
is not the account's is left out before anything else is done. They are those of `/metrics`, so the
same holds for them: what ended is counted over an instance's life too, and for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..gatekeeper.planes import Plane
from ..runtime import limits
from .metrics import Figures, Workflow, accounts_of, figures_of, workflows_of


class WorkflowOverview(msgspec.Struct, frozen=True):
    """A workflow's instances and slots.

    Attributes:
        name: of the workflow; its uuid, if it was deleted; `(v1)`: all that the account has, or
            had, on control plane V1; `(others)`: of many workflows the youngest together.
        queued, running, waiting, paused: instances by where they stand; `running` hold a slot.
        ended: how many have ended, by status, over all time; restarted ones count again.
        lease: slots that it may use.
        queue_age_ms: for how long the oldest that queues has done so.
        souschefs: how many queues these figures are of.
    """

    name: str
    queued: int
    running: int
    waiting: int
    paused: int
    ended: dict[str, int]
    lease: int
    queue_age_ms: int
    souschefs: int


class AccountOverview(msgspec.Struct, frozen=True):
    """How an account does just now.

    Attributes:
        control_plane: as of an account.
        running_max: its limit; `used`: slots in use, `leased`: given to queues, `wanted`: slots
            that they ask for.
        workflows: all, the oldest first; after them deleted ones whose instances still go.
        complete: every shard has told, and everything; else figures are too low.
        time: when this was answered.
    """

    account: str
    control_plane: str | None
    running_max: int
    used: int
    leased: int
    wanted: int
    workflows: list[WorkflowOverview]
    complete: bool
    time: str


def overview_of(
    account: str,
    plane: Plane | None,
    running_max: int,
    figures: Figures,
    shards: Iterable[str],
    now: str,
) -> AccountOverview:
    """An account's overview.

    Args:
        account: whose.
        plane: its control plane; None: unknown.
        running_max: its limit.
        figures: of all shards that have answered.
        shards: which were asked.
        now: the time.
    """
    own = figures_of(figures, account)
    slots = accounts_of(own, 1).get(account, {})
    workflows = [_shown(each) for each in workflows_of(own, limits.METRICS_ROWS_MAX)]
    is_cut = any(said.get("truncated") for said in figures.values())
    return AccountOverview(
        account,
        plane,
        running_max,
        sum(each.running for each in workflows),
        slots.get("leased", 0),
        slots.get("wanted", 0),
        workflows,
        not is_cut and set(shards) <= set(figures),
        now,
    )


def _shown(workflow: Workflow) -> WorkflowOverview:
    live: Mapping[str, Any] = dict(workflow.live())
    return WorkflowOverview(
        workflow.labels[1],
        live["queued"],
        live["running"],
        live["waiting"],
        live["paused"],
        workflow.ended,
        workflow.target,
        workflow.queue_age_ms,
        workflow.souschefs,
    )
