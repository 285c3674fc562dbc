"""What can be wrong with a data directory: each fault by its code, and what mends it. Pure.

A fault names its place, and, if it can be mended safely, the changes that do: rows that are
written or deleted in one store, files that are removed. A change is safe if it gives nobody a slot
and takes no result from anybody: it makes an Engine report again, counts again, or drops what
nothing refers to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from .identity_cache import IDENTITY_PART


class Kind(NamedTuple):
    """A kind of fault: what it means, and what `--fix` does (empty: nothing can be done safely).

    `is_note`: it is no fault, but good to know.
    """

    meaning: str
    fix: str = ""
    is_note: bool = False

    @property
    def mending(self) -> str:
        """What is to be done, for people."""
        return self.fix or ("nothing to do" if self.is_note else "by hand")


KINDS = {
    "settings.damaged": Kind("toque.json can't be read: the directory can't be opened"),
    "store.missing": Kind("a store that was made is gone, and its instances with it"),
    "store.damaged": Kind(
        "SQLite or a checksum finds it damaged: restore the whole directory, "
        "or accept it with --accept-loss SHARD"
    ),
    "store.stale": Kind(
        "the store lacks what was acknowledged: put the newest files back, or accept the loss with "
        "--accept-loss SHARD"
    ),
    "store.loss": Kind("an operator has accepted that this store lacks something", is_note=True),
    "format.older": Kind(
        "an older format: the next start of this version upgrades it; nothing more was looked at",
        is_note=True,
    ),
    "store.foreign": Kind("the file is no store of this shard, or of another format"),
    "epoch.behind": Kind(
        "Engines have heard of a later owner of this shard than the store knows: it was put back "
        "alone. They refuse its SousChefs",
        "raises the epoch past the one that was heard of",
    ),
    "lease.short": Kind(
        "more slots are in use than the Gatekeeper has written down; others may get too many",
        "writes down what is in use",
    ),
    "lease.orphan": Kind(
        "slots are leased to a SousChef that keeps nothing and that nobody will ask",
        "takes the lease back",
    ),
    "queue.unknown": Kind(
        "an instance waits for a slot, no SousChef knows it, and no alarm will tell: it is stuck",
        "sets its alarm, so that it reports again",
    ),
    "queue.gone": Kind(
        "a SousChef keeps an instance that has ended or does not exist; it may hold a slot",
        "drops the row and has the SousChef count again",
    ),
    "instance.unborn": Kind(
        "control plane V1 took instances whose Engines it did not make: they are queued until "
        "their account moves to V2",
        is_note=True,
    ),
    "alarm.missing": Kind(
        "an instance sleeps or is to be deleted, or all of a workflow are to be ended, and no "
        "alarm will do it",
        "sets the alarm",
    ),
    "alarm.orphan": Kind("an alarm of an instance that is not there", "drops the alarm"),
    "alarm.overdue": Kind(
        "alarms that were to fire while nobody had the directory open; they do at the next start",
        is_note=True,
    ),
    "alarm.failing": Kind("an entity's alarm handler has failed several times in a row"),
    "outbox.stuck": Kind(
        "a message to another entity has outlived several openings of its shard: its receiver "
        "does not take it"
    ),
    "rows.orphan": Kind("rows of an instance that is not there", "deletes them"),
    "blob.orphan": Kind("a file of a stream that no row names", "removes it"),
    "blob.missing": Kind("a row names the file of a stream that is gone: its result is lost"),
    "file.orphan": Kind("a file that an interrupted write has left", "removes it"),
    "bundle.orphan": Kind("code that no version and no instance names", "removes it"),
    "bundle.unused": Kind(
        "code of an older version that no instance needs; deployed again it is there again",
        "removes it",
        is_note=True,
    ),
    "bundle.missing": Kind(
        "the code that a script was deployed with is gone: deploy it again, the very same"
    ),
    "token.orphan": Kind("tokens of an account that does not exist; they reach nothing"),
    "token.none": Kind(
        "no operator's token is valid: nobody can make accounts or tokens",
        "lets the next start of toque up hand over a first token again",
    ),
    "shard.down": Kind("the shard does not answer: look into its log"),
    "shard.late": Kind("alarms fire late: the shard is overloaded or blocked by user code"),
    "outbox.full": Kind("many messages wait for their receivers"),
    "threads.hung": Kind("threads of bodies that were given up still run"),
    "code.broken": Kind(
        "deployed code does not load, and its instances wait: deploy code that does, or end them"
    ),
    "alarm.hung": Kind(
        "an entity's alarm handler does not end; it is ended in a while, and its alarm fires again"
    ),
    "tokens.unreadable": Kind(
        "the registry of tokens does not answer: whoever comes with one of its tokens is refused"
    ),
}
"""Every kind of fault, by its code."""


class Change(msgspec.Struct, frozen=True):
    """A statement over one store, or (without one) a file to remove."""

    place: str
    sql: str = ""
    params: tuple[Any, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """A fault.

    Attributes:
        code: see KINDS.
        place: the shard and row, or the file.
        detail: figures.
        changes: what mends it.
    """

    code: str
    place: str
    detail: str = ""
    changes: tuple[Change, ...] = ()


class Told(msgspec.Struct, frozen=True):
    """A fault as it is printed."""

    code: str
    place: str
    detail: str
    meaning: str
    fix: str
    fixed: bool
    note: bool = False


def told(findings: Iterable[Finding], fixed: bool) -> list[Told]:
    """Faults as they are printed; `fixed`: those that can be mended have been."""
    return [
        Told(
            each.code,
            each.place,
            each.detail,
            KINDS[each.code].meaning,
            KINDS[each.code].fix,
            fixed and bool(each.changes),
            KINDS[each.code].is_note,
        )
        for each in findings
    ]


def judge_running(up: dict[str, bool], figures: dict[str, dict[str, Any]]) -> list[Finding]:
    """Faults of a server that runs, by what its shards tell of themselves."""
    found = [
        Finding("tokens.unreadable" if part == IDENTITY_PART else "shard.down", part)
        for part, is_up in up.items()
        if not is_up
    ]
    for shard, said in sorted(figures.items()):
        for code, key, most in (
            ("shard.late", "alarm_late_ms_max", 60_000),
            ("outbox.full", "outbox_waiting", 1_000),
            ("threads.hung", "threads_hung", 0),
            ("alarm.hung", "alarm_handler_ms_max", 60_000),
        ):
            value = said.get(key, 0)
            if value > most:
                found.append(Finding(code, shard, f"{key} is {value:g}"))
        found += [Finding("code.broken", shard, each) for each in said.get("code_broken", ())]
    return found
