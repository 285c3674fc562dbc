"""What a deploy of a script means for the workflows of an account. Pure.

A script is what was deployed under one name: a bundle and the workflows that it defines. A name
belongs to the script that registered it. A deploy brings all that the script defines to the new
code at once: its own names, and names that were given to its classes apart. Names whose class is
gone from the script stay registered, on the last code that had it, so that no deploy ends an
instance or fails a create; the answer says which they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..runtime import limits
from ..runtime.errors import InvalidArgument, TooManyWorkflows, WorkflowOwned
from ..runtime.ids import check_workflow_name
from .messages import WorkflowRecord


class DeployPlan(msgspec.Struct, frozen=True):
    """What a deploy does: names with their classes, in order, and names that it leaves alone."""

    puts: list[tuple[str, str]]
    left: list[str]


def plan_deploy(
    workflows: Mapping[str, WorkflowRecord],
    script: str,
    classes: Sequence[tuple[str, str]],
    take_over: bool,
) -> DeployPlan:
    """What deploying a script does to an account's workflows.

    Args:
        workflows: those of the account, by name.
        script: the script's name.
        classes: name and class of each workflow that its code defines.
        take_over: names of other scripts become this one's.

    Raises:
        InvalidId, InvalidArgument: a name or the list is not as it must be.
        WorkflowOwned, TooManyWorkflows
    """
    check_script_name(script)
    if not 0 < len(classes) <= limits.BUNDLE_WORKFLOWS_MAX:
        raise InvalidArgument(f"script {script!r} defines {len(classes)} workflows.")
    for name, _ in classes:
        check_workflow_name(name)
        if name in workflows and not take_over:
            check_owner(workflows[name], script)
    own = dict(classes)
    count = len(workflows) + sum(name not in workflows for name in own)
    if count > limits.WORKFLOWS_PER_ACCOUNT_MAX:
        raise TooManyWorkflows(
            f"the account would have {count} workflows; at most "
            f"{limits.WORKFLOWS_PER_ACCOUNT_MAX} are taken. Delete some first.",
            {"max": limits.WORKFLOWS_PER_ACCOUNT_MAX},
        )
    present = set(own.values())
    others = [
        record
        for record in sorted(workflows.values(), key=lambda record: record.name)
        if record.script_name == script and record.name not in own
    ]
    follow = [(r.name, r.class_name) for r in others if r.class_name in present]
    left = [r.name for r in others if r.class_name not in present]
    return DeployPlan([*own.items(), *follow], left)


def check_owner(record: WorkflowRecord, script: str) -> None:
    """`WorkflowOwned` unless the workflow belongs to that script."""
    if record.script_name != script:
        raise WorkflowOwned(
            f"workflow {record.name!r} belongs to script {record.script_name!r}, not {script!r}. "
            "Rename one, deploy under that script's name, or take the name over "
            "('toque deploy --take-over', '?take_over=true').",
            {"workflow": record.name, "owner": record.script_name},
        )


def check_script_name(script: str) -> str:
    """The name of a script, or `InvalidArgument`."""
    is_good = 0 < len(script) <= limits.SCRIPT_NAME_CHARS_MAX and all(
        part.isascii() and part.replace("_", "a").isalnum()
        for part in script.replace("-", ".").split(".")
    )
    if not is_good:
        raise InvalidArgument(
            f"script name {script!r:.80} is not valid: use 1 to {limits.SCRIPT_NAME_CHARS_MAX} "
            "letters, digits and '_', with single '-' and '.' between them, such as 'orders' or "
            "'app.py'."
        )
    return script
