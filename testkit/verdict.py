"""What came of one run of a script, and how two of them differ.

Pure: what `everywhere` asks after each run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..api.client_values import InstanceStatus
from ..runtime.codec import decode_json, encode_json
from ..runtime.guarded import shown

_SHOWN_CHARS = 300
_MADE_ID = re.compile(r"\b[0-9a-f]{16}\b")  # as `child_calls.child_id` makes it


@dataclass(frozen=True)
class Boundary:
    """A commit, and on which side of it the shard's process dies.

    Attributes:
        commit: its number in the simulation.
        kept: the process dies just after it is made (and before anybody hears of it); else just
            before, so that it is lost.
    """

    commit: int
    kept: bool

    def __str__(self) -> str:
        return f"{'after' if self.kept else 'before'} commit {self.commit}"


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        ends: status, output and error of each instance, by `workflow/id`.
        value: what the script gave.
    """

    ends: Mapping[str, tuple[str, Any, str]]
    value: Any = None


@dataclass
class Survival:
    """What came of crashes at each commit.

    Attributes:
        commits: how many there are in the script, undisturbed.
        runs: how many runs were made, each with a crash.
        reran: the steps whose bodies ran more often than without a crash, with where the crash
            was. Steps run at least once: such a body must be idempotent.
    """

    commits: int
    runs: int = 0
    reran: dict[str, list[Boundary]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{self.commits} commits, {self.runs} runs with a crash each, "
            "and all ended as the one without."
        ]
        for step, where in self.reran.items():
            lines.append(f"  the body of {step} ran again in {len(where)} of them: {_some(where)}")
        if not self.reran:
            lines.append("  no body ran again.")
        return "\n".join(lines)


def _some(where: Sequence[Boundary], most: int = 5) -> str:
    more = f", and {len(where) - most} more" if len(where) > most else ""
    return ", ".join(map(str, where[:most])) + more


def end_of(status: InstanceStatus) -> tuple[str, Any, str]:
    """What counts of an instance's end."""
    error = "" if status.error is None else f"{status.error.name}: {status.error.message}"
    return status.status, status.output, error


def ends_of(found: Mapping[str, InstanceStatus]) -> dict[str, tuple[str, Any, str]]:
    """The ends of all, by `workflow/id`.

    A child that was given no id has one that follows from its parent's run, which is another one in
    each run of the script: so it is known by the step that started it.
    """
    made = {
        step.child["id"].rpartition("/")[2]: step.name
        for status in found.values()
        for step in status.steps
        if step.child is not None and step.type == "startChild"
    }
    steps = {id: name for id, name in made.items() if _MADE_ID.fullmatch(id)}

    def steady(text: str) -> str:
        return _MADE_ID.sub(lambda id: steps.get(id[0], id[0]), text) if steps else text

    ends = {}
    for name, status in found.items():
        how, output, error = end_of(status)
        if steps:
            output = decode_json(steady(encode_json(output).decode()).encode())
        ends[steady(name)] = how, output, steady(error)
    return ends


def differences(usual: Outcome, other: Outcome) -> list[str]:
    """How the other one differs, a line each; empty: it does not."""
    lines = []
    for name in [*usual.ends, *(n for n in other.ends if n not in usual.ends)]:
        one, two = usual.ends.get(name), other.ends.get(name)
        if one != two:
            lines.append(f"{name}: without a crash {_told(one)}; with it {_told(two)}")
    if usual.value != other.value:
        values = shown(usual.value, _SHOWN_CHARS), shown(other.value, _SHOWN_CHARS)
        lines.append(f"the script gave {values[0]} without a crash; with it {values[1]}")
    return lines


def _told(end: tuple[str, Any, str] | None) -> str:
    if end is None:
        return "there is no such instance"
    status, output, error = end
    if error:
        return f"{status} with {error[:_SHOWN_CHARS]}"
    return f"{status} with output {shown(output, _SHOWN_CHARS)}"


def ran_more(
    usual: Counter[tuple[str, str, str]], other: Counter[tuple[str, str, str]]
) -> list[str]:
    """Which bodies ran more often in the other run: `step` of `workflow`."""
    more = other - usual
    return sorted({f"{workflow} {step}" for workflow, _, step in more})
