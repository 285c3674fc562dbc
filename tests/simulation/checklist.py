"""Which checks hold which promise. The numbers are those of the guarantees in `docs/simulation.md`.

Each check must be made somewhere in a campaign: one that is never made keeps no promise.
"""

from __future__ import annotations

from typing import NamedTuple


class Promise(NamedTuple):
    """A promise in a few words, and its checks."""

    title: str
    checks: tuple[str, ...]


PROMISES: dict[int, Promise] = {
    1: Promise(
        "nothing acknowledged is lost",
        (
            "an acknowledged instance exists",
            "an end that was seen stays",
            "an instance keeps its params",
            "an instance keeps its version",
            "a run that has continued never goes back",
            "recorded result is of a body that ended",
            "an end has its output",
            "an event that is there is taken",
            "no event is made up",
            "an entity forgets nothing that it told",
            "an entity loses no update",
            "a transaction takes what is there",
            "a row that can't be stored changes nothing",
            "a failed store ends its owner at once",
            "payloads go through the codec",
            "a sensitive output is shown to nobody",
        ),
    ),
    2: Promise(
        "no instance is stuck",
        (
            "an acknowledged create ends",
            "a program ends as it must",
            "every step has run",
            "what an event changes is written",
            "nothing is left when all has ended",
            "an entity's alarm comes",
            "a cleared workflow ends",
            "a move comes to its end",
            "every instance of V1 has an Engine",
            "a move that was taken back was never there",
            "an author's mistake ends as it says",
            "a parent ends as it must",
            "no orphan is left",
            "an abandoned child goes on",
        ),
    ),
    3: Promise(
        "a step's recorded result is final",
        (
            "recorded step never runs again",
            "recorded result never changes",
            "a late result of an older attempt is refused",
            "attempts have numbers of their own",
            "at most once",
            "a step has one result",
            "a step has a result of a body",
            "a step ends as it must",
            "a life has results of its own",
            "a restart keeps what came before its step",
            "a run that was replaced begins nothing",
            "once a rollback has begun nothing else does",
            "rollbacks run one after the other",
            "what is undone has been undone",
            "who fails undoes what it did",
            "only who fails undoes what it did",
            "a rollback ends well",
            "a sleep is never short",
            "what is shielded is done though the run is cancelled",
            "a cancelled run cleans up",
            "what follows a mistake never begins",
            "a run that does not repeat itself begins nothing more",
            "a parent hears how its child ended",
            "what a parent has heard stays",
        ),
    ),
    4: Promise(
        "running <= limit",
        (
            "running <= limit",
            "running <= ledger",
            "running <= the workflow's own limit",
            "the ledger keeps to the limit",
            "a lowered limit lets nothing start above it",
            "user code runs only in a slot",
            "a SousChef's counts are its rows",
            "whoever is in a lane is there once",
            "a SousChef counts what has ended",
            "a SousChef counts no end twice",
        ),
    ),
    5: Promise("one owner", ("a fenced owner does not commit",)),
    6: Promise(
        "fair",
        (
            "the oldest of a lane goes first",
            "one grant in eight is a new one's",
            "slots are shared out",
        ),
    ),
    7: Promise(
        "the account's load is bounded",
        (
            "one Gatekeeper call per SousChef and period",
            "Gatekeeper calls stay below their bound",
        ),
    ),
    8: Promise("one hop", ("an operation goes to its Engine directly",)),
    9: Promise(
        "a list shows each instance once",
        ("a list misses nothing acknowledged", "a list shows nothing twice"),
    ),
    10: Promise(
        "a request id takes effect once",
        (
            "a repeated create gets the first answer",
            "a repeated batch gets the first answer",
            "a repeated delete gets the first answer",
            "one create wins an id",
            "a create that was refused runs nothing",
            "a restart takes effect once",
            "a child is made once",
            "events arrive once and in order",
            "an entity's answer stays",
            "an entity's messages arrive once and in order",
            "a terminated instance is terminated",
            "only who asks for it is terminated",
            "only who asks for it is cancelled",
            "a deleted id is free at once",
            "a new life is its own",
            "what is deleted runs no more",
        ),
    ),
    11: Promise("nonsense is refused at the edge", ("nonsense is refused at the edge",)),
    12: Promise(
        "accounts are walls",
        ("accounts are walls", "a list shows its own instances only"),
    ),
}

CHECKS = tuple(check for promise in PROMISES.values() for check in promise.checks)
