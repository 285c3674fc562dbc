"""Joins: `step.join` waits for several children, and says what it is: all, the first, or a merge.

A base of `child_steps.ChildSteps`' user, `step.WorkflowStep`. A join has no record of its own: each
arrival is one (a wait for a child's end), arrivals are given in their recorded order, and what is
done with them is a pure function of that order. So it fires once, at each replay at the same place,
and who comes late or twice finds no wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar, overload

from ..runtime.errors import InvalidArgument
from ..runtime.guarded import bounded, is_a, kind_of, shown
from ..runtime.ids import check_step_name
from ..runtime.limits import CHILDREN_PER_INSTANCE_MAX
from .calls import StepCall
from .child_steps import Child, ChildSteps
from .failures import JoinEmpty, JoinStarved, PayloadMismatch, StepFailed

T = TypeVar("T")
ALL, FIRST, MERGE = "all", "first", "merge"
MODES: Final = (ALL, FIRST, MERGE)
LOSERS: Final = ("finish", "cancel")
OVERWRITE, NAMED_MAP, ARRAY = "overwrite", "named_map", "array"
MERGES: Final = (OVERWRITE, NAMED_MAP, ARRAY)
_TOLD_MAX = 20
"""Of how many failures a starved join tells."""


class _Join(NamedTuple):
    """What was asked for; `max_failures` is None for "as many as leave one"."""

    name: str
    children: list[Child[Any]]
    mode: str
    is_owner: bool
    max_failures: int | None
    merge: str


class JoinSteps(ChildSteps):
    """See the module's description."""

    __slots__ = ()

    @overload
    def join(
        self,
        name: str,
        children: Iterable[Child[T]],
        *,
        mode: Literal["all"] = "all",
        losers: str = "finish",
        max_failures: Literal[0] | None = None,
    ) -> StepCall[list[T]]: ...

    @overload
    def join(
        self,
        name: str,
        children: Iterable[Child[T]],
        *,
        mode: Literal["first"],
        losers: str = "finish",
        max_failures: int | None = None,
    ) -> StepCall[T]: ...

    @overload
    def join(
        self,
        name: str,
        children: Iterable[Child[Any]],
        *,
        mode: str = "all",
        losers: str = "finish",
        max_failures: int | None = None,
        merge: str = OVERWRITE,
    ) -> StepCall[Any]: ...

    def join(
        self,
        name: str,
        children: Iterable[Child[Any]],
        *,
        mode: str = ALL,
        losers: str = "finish",
        max_failures: int | None = None,
        merge: str = OVERWRITE,
    ) -> StepCall[Any]:
        """Wait for children together.

        Args:
            name: of the waits.
            children: handles, each once.
            mode: `all` gives a list of the results, in the order of `children`; the place of a
                child that failed holds its error. `first` gives the first result. `merge` makes
                one of all results.
            losers: what becomes of those that are not waited for any more: `finish`, they go on;
                `cancel`, they end as their `on_parent_end` says.
            max_failures: how many may fail. Not given: none for `all` and `merge`, all but one for
                `first`.
            merge: `overwrite`: mappings, of which one that ends later overwrites keys of earlier
                ones; `named_map`: results by the child's id; `array`: a list, in the order of
                `children`, without those that failed.

        Raises:
            JoinEmpty: there are no children.
            JoinStarved: too many have failed, so it can't be fulfilled; `data` tells of them.
            PayloadMismatch: a result to merge by `overwrite` is no mapping.
        """
        wanted = _checked(name, children, mode, losers, max_failures, merge)
        return self._call(name, self._join, wanted)

    async def _join(self, wanted: _Join) -> Any:
        if not wanted.children:
            raise JoinEmpty(
                f"join {wanted.name!r} has no children to wait for, so it would wait for ever. "
                "Right: `if children: await step.join(...)`.",
                {"join": wanted.name},
            )
        waits = [
            asyncio.create_task(child._arrive(wanted.name, is_owned=wanted.is_owner))
            for child in wanted.children
        ]
        try:
            return _outcome(wanted, waits, await _arrivals(wanted, waits))
        finally:
            late = [wait for wait in waits if not wait.done()]
            for wait in late:
                wait.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def _arrivals(wanted: _Join, waits: list[asyncio.Task[Any]]) -> list[int]:
    """Wait until the join is decided; the places of those that have arrived, in that order."""
    arriving: asyncio.Queue[int] = asyncio.Queue()
    for place, wait in enumerate(waits):
        wait.add_done_callback(partial(_arrive, arriving, place))
    arrived: list[int] = []
    failures = 0
    while len(arrived) < len(waits):
        place = await arriving.get()
        error = waits[place].exception()
        if error is not None and not is_a(error, StepFailed):
            raise error
        arrived.append(place)
        failures += error is not None
        if _is_starved(wanted, failures) or (wanted.mode == FIRST and error is None):
            break
    return arrived


def _arrive(arriving: asyncio.Queue[int], place: int, wait: asyncio.Task[Any]) -> None:
    if not wait.cancelled():
        arriving.put_nowait(place)


def _is_starved(wanted: _Join, failures: int) -> bool:
    return wanted.max_failures is not None and failures > wanted.max_failures


def _outcome(wanted: _Join, waits: Sequence[asyncio.Task[Any]], arrived: list[int]) -> Any:
    failed = [n for n in arrived if waits[n].exception() is not None]
    good = [n for n in arrived if waits[n].exception() is None]
    if _is_starved(wanted, len(failed)) or (wanted.mode == FIRST and not good):
        raise _starved(wanted, [(wanted.children[n], waits[n].exception()) for n in failed])
    if wanted.mode == FIRST:
        return waits[good[0]].result()
    if wanted.mode == ALL:
        return [wait.exception() or wait.result() for wait in waits]
    if wanted.merge == NAMED_MAP:
        return {wanted.children[n].id: waits[n].result() for n in sorted(good)}
    if wanted.merge == ARRAY:
        return [waits[n].result() for n in sorted(good)]
    merged: dict[Any, Any] = {}
    for place in good:
        result = waits[place].result()
        if not isinstance(result, Mapping):
            child = wanted.children[place]
            raise PayloadMismatch(
                f"join {wanted.name!r} merges mappings, and the result of child {child.id!r} of "
                f"workflow {child.workflow!r} is a {kind_of(result)}. Right: merge='array', or "
                "merge='named_map'."
            )
        merged.update(result)
    return merged


def _starved(wanted: _Join, failed: list[tuple[Child[Any], BaseException | None]]) -> JoinStarved:
    allowed = len(wanted.children) - 1 if wanted.max_failures is None else wanted.max_failures
    told = [
        {"workflow": child.workflow, "id": child.id, "message": bounded(str(error), 200)}
        for child, error in failed[:_TOLD_MAX]
    ]
    return JoinStarved(
        f"join {wanted.name!r} of {len(wanted.children)} children can't be fulfilled: "
        f"{len(failed)} failed, and {allowed} may; the last one: "
        f"{told[-1]['message'] if told else ''}",
        {"join": wanted.name, "failures": len(failed), "failed": told},
    )


def _checked(
    name: str,
    children: Iterable[Child[Any]],
    mode: str,
    losers: str,
    max_failures: int | None,
    merge: str,
) -> _Join:
    check_step_name(name)
    for what, given, known in (
        ("mode", mode, MODES),
        ("losers", losers, LOSERS),
        ("merge", merge, MERGES),
    ):
        if given not in known:
            raise InvalidArgument(
                f"{what} of join {name!r} is {shown(given)}; it is one of {', '.join(known)}."
            )
    if max_failures is not None and (type(max_failures) is not int or max_failures < 0):
        raise InvalidArgument(
            f"max_failures of join {name!r} is {shown(max_failures)}; it must be a whole number "
            "from 0 on, or None."
        )
    handles = list(children) if isinstance(children, Iterable) else [children]
    for handle in handles:
        if not isinstance(handle, Child):
            raise InvalidArgument(
                f"join {name!r} was given {shown(handle)}, which is no child. Wrong: "
                "the call of `step.start_child` itself. Right: what it gives, by `await`."
            )
    if len({id(handle) for handle in handles}) < len(handles):
        raise InvalidArgument(f"join {name!r} was given a child twice; it counts once.")
    if merge != OVERWRITE and mode != MERGE:
        raise InvalidArgument(
            f"join {name!r} was given merge={merge!r} with mode={mode!r}, which merges nothing. "
            f"Right: mode='merge', merge={merge!r}."
        )
    if merge == NAMED_MAP and len({handle.id for handle in handles}) < len(handles):
        raise InvalidArgument(
            f"join {name!r} maps ids to results, and children of several workflows have the same "
            "id: one result would hide another. Right: merge='array', or other ids."
        )
    if len(handles) > CHILDREN_PER_INSTANCE_MAX:
        raise InvalidArgument(
            f"join {name!r} was given {len(handles)} children; {CHILDREN_PER_INSTANCE_MAX} may be "
            "waited for at a time."
        )
    if max_failures is None and mode != FIRST:
        max_failures = 0
    return _Join(name, handles, mode, losers == "cancel", max_failures, merge)
