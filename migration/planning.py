"""What speaks against moving an account, and what a move of it would do. Pure.

`Facts` is all that is asked for; the same facts give the same plan.
"""

from __future__ import annotations

import msgspec

from ..runtime import limits
from .cutover import Cutover, under_way
from .messages import MigrationPlan, OldStatus


class Facts(msgspec.Struct, frozen=True):
    """What is known of an account before it is moved.

    Attributes:
        account: whose.
        old: how AccountOld stands; None: it does not answer.
        known: its last migration.
        workflows, scripts: how many there are; None: not known.
        running_max: how many may run by the account's own limit.
        v1_max: and by V1's.
        queued: of each workflow, by name.
        silent: shards that do not answer.
    """

    account: str
    old: OldStatus | None
    known: Cutover | None
    workflows: int | None
    scripts: int | None
    running_max: int
    v1_max: int
    queued: dict[str, int]
    silent: list[str]


def plan_of(facts: Facts) -> MigrationPlan:
    """The plan, with what speaks against it."""
    old = facts.old
    return MigrationPlan(
        facts.account,
        "" if old is None else old.plane,
        [] if old is None or old.plane != "v1" else _steps(facts, old),
        objections(facts),
        old,
        facts.workflows or 0,
        facts.scripts or 0,
        min(facts.running_max, facts.v1_max),
        facts.running_max,
    )


def objections(facts: Facts) -> list[str]:
    """What speaks against it, a sentence each; nothing: it can be begun."""
    found: list[str] = []
    known, old = facts.known, facts.old
    if known is not None and not known.finished:
        found.append(under_way(known))
    if old is None:
        found.append("Its V1 control plane does not answer: try again when its shard is back.")
    elif old.plane == "v2":
        found.append("It is not on V1: there is nothing to move.")
    elif old.plane == "moving" and (known is None or known.finished):
        found.append("It is between the planes, by a migration that is not known here.")
    found += [
        f"Shard {shard} does not answer: creates on V2 would wait for it." for shard in facts.silent
    ]
    if (facts.workflows or 0) > limits.WORKFLOWS_PER_ACCOUNT_MAX:
        found.append(
            f"It has {facts.workflows} workflows; V2 takes {limits.WORKFLOWS_PER_ACCOUNT_MAX}."
        )
    if (facts.scripts or 0) > limits.SCRIPTS_PER_ACCOUNT_MAX:
        found.append(f"It has {facts.scripts} scripts; V2 takes {limits.SCRIPTS_PER_ACCOUNT_MAX}.")
    return found + [
        f"Workflow {name!r} has {count} queued; V2 takes {limits.QUEUED_PER_WORKFLOW_MAX}."
        for name, count in sorted(facts.queued.items())
        if count > limits.QUEUED_PER_WORKFLOW_MAX
    ]


def _steps(facts: Facts, old: OldStatus) -> list[str]:
    before, after = min(facts.running_max, facts.v1_max), facts.running_max
    return [
        f"freeze: V1 takes no more creates and gives no more slots; the {old.holding} that hold "
        "one keep it.",
        f"adopt: Account and Gatekeeper of V2 are made of {facts.workflows or 0} workflows, "
        f"{facts.scripts or 0} scripts, all limits, and a lease of {old.holding} slots.",
        f"route: V2 serves; at most {after} run, on V1 {before}. V1's entity goes on as the "
        f"SousChef of the {old.queued + old.waiting + old.paused + old.holding} that live.",
        f"heal: the {old.unborn} that are queued without an Engine get one; a create of an id "
        "asks V1 first, until none is left. The first one is also the end of 'abort'.",
        "drain: it is waited until all that V1 began has ended.",
        f"retire: V1's entity goes when the last of {old.ended} ended ones is kept no longer; "
        "until then no workflow takes a running_max of its own.",
    ]
