"""Which deliberate bugs there are, under which focus each is looked for, and what must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .campaign import play
from .focus import CALM, CRASHES, EVERYTHING, OWNERS, Focus, on

INSIDE = frozenset(
    {
        "a fenced owner does not commit",
        "running <= ledger",
        "the ledger keeps to the limit",
        "user code runs only in a slot",
        "no error is lost",
    }
)
"""Checks that look inside. The worst bugs must be found without them too."""

SEEN_OUTSIDE = frozenset(
    {
        "a deleted id is free at once",
        "a late result of an older attempt is refused",
        "a repeated delete gets the first answer",
        "an acknowledged instance exists",
        "an end that was seen stays",
        "an entity forgets nothing that it told",
        "an entity loses no update",
        "an entity's answer stays",
        "an entity's messages arrive once and in order",
        "at most once",
        "attempts have numbers of their own",
        "recorded result never changes",
        "recorded step never runs again",
        "running <= limit",
    }
)
"""What clients and bodies see when something that was told is lost, or told twice."""


class Case(NamedTuple):
    """A deliberate bug.

    Attributes:
        focus: under which it is looked for.
        expected: each of these promises may find it.
        ignored: promises that may break meanwhile.
        is_slow: it is looked for in the campaign only.
    """

    focus: Focus
    expected: frozenset[str]
    ignored: frozenset[str] = frozenset()
    is_slow: bool = False


def _case(focus: Focus, *expected: str, is_slow: bool = False) -> Case:
    return Case(focus, frozenset(expected), is_slow=is_slow)


_FAMILY = ("family",)
_UNDOING = ("undo", "doomed")
_RESTARTS = on("crash", "all", gap_s=2.0, down_s=3.0)
_MISTAKES = on(instances=1, often=("mistakes",), work=("mistakes",))
_MOVES = on(limit=3, instances=4, work=("moving",))

_ORPHANS = ("no orphan is left", "nothing is left when all has ended")
_KIN = on(instances=1, often=("family",), work=("family",))
_KIN_CRASHES = on("crash", "all", gap_s=1.5, down_s=3.0, instances=1, often=_FAMILY, work=_FAMILY)
_KIN_LOST = on(
    "loss", "crash", weather=25.0, gap_s=1.0, down_s=3.0, instances=1, often=_FAMILY, work=_FAMILY
)

CASES: dict[str, Case] = {
    "no_output_gate": _case(CRASHES, "user code runs only in a slot", *SEEN_OUTSIDE),
    "no_epoch_check": _case(OWNERS, "a fenced owner does not commit"),
    "no_announce_alarm": _case(CRASHES, "an acknowledged create ends"),
    "grant_outside_ledger": _case(on("crash", limit=2), "running <= ledger"),
    "unfenced_attempts": _case(
        on("loss", modes=("late",)),
        "a late result of an older attempt is refused",
        "user code runs only in a slot",
        "no error is lost",
    ),
    "undo_twice": _case(
        on("crash", gap_s=0.6, down_s=2.0, often=_UNDOING, modes=("undo",)),
        "recorded step never runs again",
    ),
    "undo_oldest_first": _case(on(often=_UNDOING, modes=("undo",)), "who fails undoes what it did"),
    "events_lost_at_continue": _case(
        on(often=("parts",)),
        "events arrive once and in order",
        "an event that is there is taken",
    ),
    "event_outside_commit": _case(
        on("crash", gap_s=0.6, down_s=2.0),
        "events arrive once and in order",
        "a program ends as it must",
    ),
    "no_shield": _case(
        on(often=("cancel",)),
        "a cancelled run cleans up",
        "what is shielded is done though the run is cancelled",
    ),
    "delete_untold": _case(CALM, "nothing is left when all has ended"),
    "tombstone_forgotten": _case(
        on("loss", "crash", weather=25.0, gap_s=1.5, down_s=2.0, work=("lives",)),
        "a repeated delete gets the first answer",
    ),
    "restart_keeps_first": _case(  # seen until the next run's first step takes its place
        on(limit=1, instances=32, often=("parts", "look", "restart")),
        "a life has results of its own",
    ),
    "fork_drops_kept": _case(on(often=("restart",)), "a restart keeps what came before its step"),
    "restart_twice": _case(
        on("repeat", "loss", weather=8.0, often=("restart",)),
        "an end that was seen stays",
        "a restart takes effect once",
    ),
    "stale_grant": _case(
        on("repeat", "tail", weather=8.0, often=("restart", "pause"), limit=2),
        "running <= ledger",
    ),
    "replay_order_ignored": _case(_RESTARTS, "a program ends as it must", "every step has run"),
    "result_unwritten": _case(
        _RESTARTS, "recorded step never runs again", "a program ends as it must"
    ),
    "request_forgotten": _case(
        on("loss", "repeat", weather=8.0),
        "events arrive once and in order",
        "a repeated delete gets the first answer",
    ),
    "stream_unnamed": _case(_RESTARTS, "a program ends as it must"),
    "no_codec": _case(CALM, "payloads go through the codec", "a program ends as it must"),
    "secret_shown": _case(on(modes=("secret",)), "a sensitive output is shown to nobody"),
    "unfit_taken": _case(_MISTAKES, "an author's mistake ends as it says"),
    "divergence_unseen": _case(
        _MISTAKES,
        "a run that does not repeat itself begins nothing more",
        "an author's mistake ends as it says",
    ),
    "end_swallowed": _case(
        _MISTAKES, "what follows a mistake never begins", "attempts have numbers of their own"
    ),
    "crashes_forgiven": _case(
        on("worker", instances=1, often=("mistakes",), work=("mistakes",)),
        "an acknowledged create ends",
    ),
    "lost_run_forgotten": _case(
        on("worker", gap_s=1.5, modes=("exit",)), "an acknowledged create ends"
    ),
    "frames_overtake": _case(
        on("worker", gap_s=0.8, modes=("exit",), instances=40, limit=40),
        "an acknowledged create ends",
        "a program ends as it must",
        "a parent ends as it must",
        "an event that is there is taken",
    ),
    "grant_unwritten": _case(
        on("reset", "zombie", gap_s=0.5, limit=8),
        "what an event changes is written",
        "running <= ledger",
        "an acknowledged create ends",
    ),
    "missing_code_fails": _case(on("code", gap_s=2.0), "a program ends as it must"),
    "outbox_unconfirmed": _case(
        on("loss", "crash", weather=20.0, gap_s=1.0, down_s=2.0, work=("entities",)),
        "an entity's messages arrive once and in order",
    ),
    "outbox_twice": _case(
        on("loss", weather=8.0, work=("entities",)),
        "an entity's messages arrive once and in order",
    ),
    "bad_row_untold": _case(on(work=("entities",)), "a row that can't be stored changes nothing"),
    "bad_part_kept": _case(on(work=("entities",)), "a row that can't be stored changes nothing"),
    "no_input_gate": _case(on(work=("entities",)), "an entity loses no update"),
    "alarms_lost": _case(
        on("crash", "all", gap_s=2.0, down_s=3.0, work=("entities",)),
        "an acknowledged create ends",
        "an entity's alarm comes",
        "nothing is left when all has ended",
    ),
    "lease_lowered_early": _case(on(limit=4, work=("limit",)), "running <= ledger"),
    "first_takes_all": _case(
        on(instances=4, work=("contention",)), "slots are shared out", is_slow=True
    ),
    "counts_drift": _case(on(often=("pause",)), "a SousChef's counts are its rows"),
    "disorder_unmarked": _case(
        on("cut", gap_s=1.0),
        "a SousChef's counts are its rows",
        "whoever is in a lane is there once",
    ),
    "seventh_new": _case(on(limit=1, instances=32), "one grant in eight is a new one's"),
    "newest_first": _case(on(limit=1, instances=24), "the oldest of a lane goes first"),
    "new_first": _case(on(limit=1, instances=32), "one grant in eight is a new one's"),
    "calls_too_often": _case(CALM, "one Gatekeeper call per SousChef and period"),
    "c_exceeded": _case(
        on(instances=32, souschefs=8, calls=8), "Gatekeeper calls stay below their bound"
    ),
    "wall_broken": _case(on(work=("walls",)), "accounts are walls", "one create wins an id"),
    "list_skips": _case(on(instances=32), "a list misses nothing acknowledged"),
    "list_repeats": _case(on(instances=32), "a list shows nothing twice"),
    "extra_hop": _case(CALM, "an operation goes to its Engine directly"),
    "lease_not_frozen": _case(_MOVES, "running <= ledger"),
    "heal_forgets": _case(_MOVES, "an acknowledged create ends", "an acknowledged instance exists"),
    "ask_skipped": _case(_MOVES, "one create wins an id", "an acknowledged instance exists"),
    "end_outside_commit": _case(_KIN_CRASHES, "an acknowledged create ends"),
    "orphan_unasked": _case(_KIN_LOST, *_ORPHANS),
    "children_untold": _case(_KIN, *_ORPHANS),
    "child_made_anew": _case(
        _KIN_LOST,
        "a child is made once",
        "a parent hears how its child ended",
        *_ORPHANS,
    ),
    "early_end_lost": _case(
        _KIN, "an acknowledged create ends", "nothing is left when all has ended"
    ),
    "end_not_given_back": _case(
        on(instances=1, often=("family", "fork"), work=_FAMILY), "an acknowledged create ends"
    ),
    "nonsense_taken": _case(on(work=("nonsense",)), "nonsense is refused at the edge"),
}

OUTSIDE: dict[str, Case] = {
    "no_output_gate": Case(CRASHES, SEEN_OUTSIDE, INSIDE),
    "no_epoch_check": Case(OWNERS, SEEN_OUTSIDE, INSIDE),
    "grant_outside_ledger": Case(
        on("crash", limit=2, gap_s=3.0), frozenset({"running <= limit"}), INSIDE
    ),
}
"""The worst, looked for without looking inside."""


class Found(NamedTuple):
    """How a bug was looked for: seeds played, what broke in each that failed, CPU of the longest.

    `by` is the promise that found it; empty: none did.
    """

    seeds: int
    by: str
    broken: list[str]
    cpu_s_max: float


def look_for(bug: str, case: Case, seeds: int) -> Found:
    """Play seeds with a bug in force until one of the expected promises breaks."""
    broken: list[str] = []
    cpu_s_max = 0.0
    for seed in range(seeds):
        report = play(seed, (bug,), ignored=case.ignored, focus=case.focus)
        cpu_s_max = max(cpu_s_max, report.cpu_s)
        if report.broken is not None:
            broken.append(report.broken.promise)
            if report.broken.promise in case.expected:
                return Found(seed + 1, report.broken.promise, broken, cpu_s_max)
    return Found(seeds, "", broken, cpu_s_max)


def tell_of_bugs(names: Iterable[str], seeds: int, tell: Callable[[str], None]) -> int:
    """How many seeds each bug needs, under its focus and without one. 0: each was found."""
    missed = []
    tell("| bug | seeds under its focus | seeds without a focus | found by |")
    tell("| --- | --- | --- | --- |")
    for name in names:
        case = CASES[name]
        found = look_for(name, case, seeds)
        plain = _first_broken(name, seeds)
        tell(f"| `{name}` | {found.seeds} | {plain} | {found.by or found.broken} |")
        if not found.by:
            missed.append(name)
    tell(f"missed: {', '.join(missed)}" if missed else "each was found")
    return 1 if missed else 0


def _first_broken(bug: str, seeds: int) -> str:
    for seed in range(seeds):
        if play(seed, (bug,), focus=EVERYTHING).broken is not None:
            return str(seed + 1)
    return f"more than {seeds}"
