"""What an Engine needs of the floor above, and the messages between them.

The SousChef (upper floor) implements `report`; `EngineShard` implements `grant_many` and
`poke_many` for it. All are level-triggered and idempotent: each message says how things stand,
not what changed, and carries what is needed to refuse a stale one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..runtime.ids import ACCOUNT_OLD_KIND, OLD_SOUSCHEF, EntityRef, old_key

SOUSCHEF_KIND = "SousChef"
OLD_NUMBER = -1
"""In place of a SousChef's number: made on V1, the instance reports to AccountOld for life."""
NO_NUMBER = -2
"""In place of a SousChef's number: V1 has heard that what it made is deleted."""
ENGINE_KIND = "Engine"
ENGINE_SHARD_KIND = "EngineShard"

SlotState = Literal["queued", "running", "waiting", "paused", "ended"]
"""What the SousChef must know: wants a slot | holds one | parked | paused | gone."""


def souschef_key(engine_key: str, instance_id: str, number: int) -> str:
    """The key of the SousChef that an instance reports to, by its number there."""
    if number == OLD_NUMBER:
        return old_key(engine_key.split("/", 1)[0])
    return f"{engine_key[: -len(instance_id)]}{number}"


def souschef_ref(key: str) -> EntityRef:
    """The entity with that key among SousChefs, of which AccountOld is one."""
    is_old = key.endswith(OLD_SOUSCHEF)
    return EntityRef(ACCOUNT_OLD_KIND if is_old else SOUSCHEF_KIND, key)


class StatusReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How an instance stands. Sent after the commit that made it so, until confirmed.

    Attributes:
        key: the Engine's key, `account/workflow uuid/instance id`.
        run_id: the run.
        seq: grows with every report of the run; a report with a smaller or equal one is stale.
        state: see `SlotState`.
        turn: number of the slot request; a grant must carry it. Grows with each request.
        awakened: in `queued`, whether it has run before (it ranks before new ones).
        since_ms: when it entered the state; the queue's order.
        wake_ms: in `waiting`, when it means to wake; 0 if only an event can wake it.
        status: the instance's public status, for counts (`complete`, `errored`, ...).
        shard: the data shard the report comes from; grants and pokes go there.
    """

    key: str
    run_id: str
    seq: int
    state: SlotState
    turn: int
    awakened: bool
    since_ms: int
    wake_ms: int
    status: str
    shard: str


class Grant(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Leave for an instance to run: one slot, for that run and turn, and no other."""

    key: str
    run_id: str
    turn: int


class ClearPage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What clearing a part of a shard has done.

    Attributes:
        found: how many instances there were.
        after: the last one's time of creation and id; None: the shard holds no more.
    """

    found: int
    after: tuple[int, str] | None


# EngineShard.clear(account, uuid, how, statuses, after, request_id, source) -> ClearPage
#     Terminates or deletes the next instances of a workflow; see `souschef.clearing`.
# SousChef.report(reports: list[StatusReport]) -> bool  (nobody waits for a slot there)
#     Answers when all are durably noted. The sender repeats until then.
# EngineShard.grant_many(souschef: str, epoch: int, grants: list[Grant]) -> list[bool]
#     True: accepted (running, durable, or already was for that turn). False: refused (stale run
#     or turn, finished, gone): the slot is free again.
#     `epoch` is the SousChef's shard epoch; a smaller one than seen for `souschef` is refused.
# EngineShard.poke_many(souschef: str, epoch: int, keys: list[str]) -> list[str]
#     Makes each Engine look at its timers and report its state anew. Gives the keys that do not
#     exist (any more), or do not report to the AccountOld that asks.
