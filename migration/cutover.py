"""The move of an account from V1 to V2, as a state machine. Pure.

    planned -> frozen -> adopted -> routed -> healed -> drained -> retired
    planned, frozen, adopted, routed -> aborting -> aborted, or back if it was too late

Each state is durable before its act begins, and each act is idempotent by the migration's id; so
after a crash the act of the state is done again, and nothing else has to be known. TRANSITIONS is
all there is; what is not in it never happens.

Between `frozen` and `routed` the account takes no calls, so there is no pause there: a pause holds
before the freeze, while it heals, while it drains, and before V1's entity goes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from ..runtime import limits
from ..runtime.errors import RequestIdReused
from .messages import Frozen, OldStatus, migration_id
from .refusals import AbortRefused, MigrationUnderWay


class State(StrEnum):
    """How far a migration is; the act that follows stands in ACTS."""

    PLANNED = "planned"
    FROZEN = "frozen"
    ADOPTED = "adopted"
    ROUTED = "routed"
    HEALED = "healed"
    DRAINED = "drained"
    RETIRED = "retired"
    ABORTING = "aborting"
    ABORTED = "aborted"


class Act(StrEnum):
    """What is done in a state, as often as it takes.

    `freeze`: V1 stops, and says what there is. `adopt`: Account and Gatekeeper of V2 are made of
    it. `route`: AccountOld serves as a SousChef of V2. `heal`: what has no Engine gets one.
    `drain`: wait until all that V1 began has ended. `retire`: until none of it is kept. `abandon`:
    V1 again, and nothing of V2 was ever there.
    """

    FREEZE = "freeze"
    ADOPT = "adopt"
    ROUTE = "route"
    HEAL = "heal"
    DRAIN = "drain"
    RETIRE = "retire"
    ABANDON = "abandon"


class Outcome(StrEnum):
    """What came of an act: it is `done`, has to be done `again`, or was `refused` for good."""

    DONE = "done"
    AGAIN = "again"
    REFUSED = "refused"


ACTS: dict[State, Act] = {
    State.PLANNED: Act.FREEZE,
    State.FROZEN: Act.ADOPT,
    State.ADOPTED: Act.ROUTE,
    State.ROUTED: Act.HEAL,
    State.HEALED: Act.DRAIN,
    State.DRAINED: Act.RETIRE,
    State.ABORTING: Act.ABANDON,
}
TRANSITIONS: dict[State, State] = {
    State.PLANNED: State.FROZEN,
    State.FROZEN: State.ADOPTED,
    State.ADOPTED: State.ROUTED,
    State.ROUTED: State.HEALED,
    State.HEALED: State.DRAINED,
    State.DRAINED: State.RETIRED,
    State.ABORTING: State.ABORTED,
}
"""Where a state's act leads when it is done. An abort leads to `aborting`, its refusal back."""
ABORTABLE = frozenset({State.PLANNED, State.FROZEN, State.ADOPTED, State.ROUTED})
HOLDS = frozenset({State.PLANNED, State.ROUTED, State.HEALED, State.DRAINED})
"""Where a pause holds."""
FINISHED = frozenset({State.RETIRED, State.ABORTED})
_LOOKS_MS: dict[Act, tuple[int, int]] = {
    Act.DRAIN: (limits.MIGRATION_LOOK_MS, limits.MIGRATION_LOOK_MAX_MS),
    Act.RETIRE: (limits.MIGRATION_LOOK_MAX_MS, limits.MIGRATION_RETIRE_MAX_MS),
}
_LOOKS = 20
"""What takes long is looked at the more seldom: after a part of the time that it has taken."""


class Cutover(msgspec.Struct, frozen=True):
    """A migration; what its row holds.

    Attributes:
        number: the account's first is 1; see `migration_id`.
        state: how far it is.
        not_before_ms: when it may begin.
        paused: it holds where it may.
        log: each state with when it was reached.
        frozen: what V1 said at the freeze.
        came_from: of `aborting`: where a refusal leads back to.
        too_late, too_late_ms: why it was found too late for an abort, and since when; empty: it
            was not.
        trouble: why the last try failed; empty: it did not.
        seen: the newest requests that changed this migration or those before it: what was asked,
            a space, the request id; older ones that alone.
    """

    number: int
    state: State
    not_before_ms: int
    paused: bool = False
    log: list[tuple[str, int]] = []
    frozen: Frozen | None = None
    came_from: State | None = None
    too_late: str = ""
    too_late_ms: int = 0
    trouble: str = ""
    seen: list[str] = []

    @property
    def id(self) -> str:
        """What all that it changes is known by."""
        return migration_id(self.number)

    @property
    def finished(self) -> bool:
        """Whether nothing follows any more."""
        return self.state in FINISHED

    @property
    def holds(self) -> bool:
        """Whether it stands still because it was paused."""
        return self.paused and self.state in HOLDS


def begun(known: Cutover | None, request_id: str, in_ms: int, now_ms: int) -> Cutover:
    """A new migration, after the last one that is known.

    Args:
        known: that one.
        request_id: the same again is the same migration.
        in_ms: after how long it begins.
        now_ms: now.

    Raises:
        MigrationUnderWay: that one is not finished, and another request began it.
        RequestIdReused: see `knows`.
    """
    what = f"start:{in_ms}"
    if known is not None and knows(known, request_id, what):
        return known
    if known is not None and not known.finished:
        raise MigrationUnderWay(under_way(known), {"state": known.state.value})
    number = 1 if known is None else known.number + 1
    log = [(State.PLANNED.value, now_ms)]
    made = Cutover(number, State.PLANNED, now_ms + in_ms, log=log)
    seen = [] if known is None else known.seen
    return asked(msgspec.structs.replace(made, seen=seen), request_id, what)


def under_way(cutover: Cutover) -> str:
    """That a migration is not finished, and what can be done about it."""
    told = f"The account is being moved already: {cutover.state}."
    if cutover.holds:
        told += " It is paused; 'toque migrate resume' has it go on."
    too_late = final(cutover, None)
    if not too_late:
        return f"{told} Let it go on, or take it back with 'toque migrate abort'."
    rest = "nothing needs to be done" if cutover.state is State.DRAINED else "it goes on by itself"
    return f"{told} V2 serves it, and {rest}: 'toque migrate status' tells how far it is."


def asked(cutover: Cutover, request_id: str, what: str) -> Cutover:
    """The migration, which remembers that request: sent again, or late, it changes nothing."""
    seen = [*cutover.seen, f"{what} {request_id}"][-limits.MIGRATION_REQUESTS_KEPT_MAX :]
    return msgspec.structs.replace(cutover, seen=seen)


def knows(cutover: Cutover, request_id: str, what: str) -> bool:
    """Whether that request has changed this migration, or one before it.

    Raises:
        RequestIdReused: one with that id did, and it asked for something else.
    """
    for note in cutover.seen:
        known, _, known_id = note.partition(" ")
        if request_id not in (note, known_id):
            continue
        if note != request_id and known != what:
            raise RequestIdReused(
                f"the request id (Idempotency-Key) was used for another change of this migration "
                f"({known.partition(':')[0]}), and nothing was done; another change takes another."
            )
        return True
    return False


def act_of(cutover: Cutover, now_ms: int) -> Act | None:
    """What is to be done now; None: nothing, or not yet."""
    if cutover.finished or cutover.holds:
        return None
    if cutover.state is State.PLANNED and now_ms < cutover.not_before_ms:
        return None
    return ACTS[cutover.state]


def due_ms(cutover: Cutover, now_ms: int) -> int | None:
    """When to look at it again, if no act is under way; None: when somebody asks."""
    if cutover.finished or cutover.holds:
        return None
    return max(now_ms, cutover.not_before_ms) if cutover.state is State.PLANNED else now_ms


def pause_ms(cutover: Cutover, act: Act, now_ms: int) -> int:
    """How long after an act that has to be done again."""
    if act not in _LOOKS_MS:
        return limits.MIGRATION_HEAL_MS
    least, most = _LOOKS_MS[act]
    return max(least, min(most, (now_ms - cutover.log[-1][1]) // _LOOKS))


def moved(cutover: Cutover, outcome: Outcome, now_ms: int, found: Any = None) -> Cutover:
    """The migration after an act.

    Args:
        outcome: what came of it.
        found: of a freeze what V1 said; of a refusal of an abort that error.
    """
    if outcome is Outcome.AGAIN:
        return msgspec.structs.replace(cutover, trouble="") if cutover.trouble else cutover
    if outcome is Outcome.REFUSED:
        assert cutover.came_from is not None, cutover
        assert isinstance(found, AbortRefused), found
        back, since_ms = _reached(cutover, cutover.came_from, now_ms), found.data["since_ms"]
        return msgspec.structs.replace(
            back, came_from=None, too_late=found.message, too_late_ms=since_ms
        )
    after = _reached(cutover, TRANSITIONS[cutover.state], now_ms)
    if cutover.state is State.PLANNED:
        assert isinstance(found, Frozen), found
        after = msgspec.structs.replace(after, frozen=found)
    return after


def aborting(cutover: Cutover, now_ms: int) -> Cutover:
    """The migration, to be taken back if V1 agrees.

    Raises:
        AbortRefused: it is known that it is too late.
    """
    if cutover.state in (State.ABORTING, State.ABORTED):
        return cutover
    if final(cutover, None):
        raise late_abort(cutover)
    after = _reached(cutover, State.ABORTING, now_ms)
    return msgspec.structs.replace(after, came_from=cutover.state)


def late_abort(cutover: Cutover) -> AbortRefused:
    """That it can't be taken back any more: since when, why, and what becomes of it."""
    since_ms = cutover.too_late_ms or dict(cutover.log).get(State.HEALED.value, 0)
    at = datetime.fromtimestamp(since_ms / 1_000, UTC).isoformat(" ", "milliseconds")
    since = f", since {at}" if since_ms else ""
    rest = "It has ended" if cutover.finished else "It goes on"
    return AbortRefused(
        f"The migration can't be aborted{since}: {final(cutover, None)}. {rest}.",
        {"state": cutover.state.value, "since_ms": since_ms},
    )


def final(cutover: Cutover, old: OldStatus | None) -> str:
    """Why it can't be taken back; empty: it can, as far as is known."""
    if cutover.state is State.ABORTED:
        return "it was aborted"
    if cutover.too_late:
        return cutover.too_late
    if old is not None and old.first_create_ms and old.migration_id == cutover.id:
        return "V2 has taken creates already: V1 knows nothing of those instances"
    if cutover.state in ABORTABLE or cutover.state is State.ABORTING:
        return ""
    return "V2 has healed the account: since then V1 is not asked about creates, and knows not all"


def troubled(cutover: Cutover, why: str) -> Cutover:
    """The migration after a try that failed."""
    return msgspec.structs.replace(cutover, trouble=why[: limits.ERROR_MESSAGE_CHARS_MAX])


def _reached(cutover: Cutover, state: State, now_ms: int) -> Cutover:
    log = [*cutover.log, (state.value, now_ms)]
    return msgspec.structs.replace(cutover, state=state, log=log, trouble="")
