"""Max-min division of slots: between workflows, then between a workflow's SousChefs. Pure.

`divide` gives each claim what it wants as long as nobody with less could use it. With whole
slots that means: whoever got less than it wants could be given one more only by someone whose
share (per weight) would then be the smaller one. Slots that do not divide evenly go by `rank`.

`split` divides a workflow's slots between its SousChefs, across all of them in this order:
those that have run before (awakened), of each OLDEST_NEW_EVERY slots one to new instances so
that these can't starve, and the rest to what runs already and to further new ones.

Both take O(n log n) and give the same answer for the same input. What they give is an aim: who
holds more keeps it until its instances leave.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from ..runtime.limits import OLDEST_NEW_EVERY


class Claim(NamedTuple):
    """One who wants slots.

    Attributes:
        wanted: how many it can use.
        weight: its share relative to others', at least 1.
        rank: who comes first (smallest) where shares are equal; must differ between claims.
    """

    wanted: int
    weight: int
    rank: tuple[int, ...]


class Member(NamedTuple):
    """A SousChef's last word: slots in use, instances that wait for one, oldest new one."""

    holding: int
    awakened: int
    fresh: int
    oldest_fresh_ms: int


def divide(slots: int, claims: Sequence[Claim]) -> list[int]:
    """The max-min share of each claim, in the order of `claims`."""
    shares = [claim.wanted for claim in claims]
    if sum(shares) <= slots:
        return shares
    left = slots
    weight = sum(claim.weight for claim in claims)
    order = sorted(range(len(claims)), key=lambda i: claims[i].wanted / claims[i].weight)
    for position, index in enumerate(order):
        claim = claims[index]
        if claim.wanted * weight > left * claim.weight:
            _fill(left, weight, claims, order[position:], shares)
            break
        left -= claim.wanted
        weight -= claim.weight
    return shares


def _fill(
    left: int, weight: int, claims: Sequence[Claim], hungry: list[int], shares: list[int]
) -> None:
    """Share `left` slots out between claims that all want more than there is."""
    odd = left
    heap = []
    for index in hungry:
        claim = claims[index]
        base = left * claim.weight // weight
        shares[index] = base
        odd -= base
        heap.append(((base + 1) / claim.weight, claim.rank, index))
    heapq.heapify(heap)
    for _ in range(odd):
        _, rank, index = heap[0]
        shares[index] += 1
        claim = claims[index]
        if shares[index] < claim.wanted:
            heapq.heapreplace(heap, ((shares[index] + 1) / claim.weight, rank, index))
        else:
            heapq.heappop(heap)


def split(slots: int, members: Sequence[Member], turn: int) -> list[int]:
    """Each member's part of a workflow's slots, in the order of `members`.

    Args:
        slots: the workflow's share.
        members: its SousChefs, always in the same order.
        turn: grows slowly; who gets odd slots, and when a workflow with fewer than
            OLDEST_NEW_EVERY slots gives one to a new instance, goes round with it.
    """
    wanted = [member.holding + member.awakened + member.fresh for member in members]
    if sum(wanted) <= slots:
        return wanted
    if len(members) == 1:
        return [slots]
    fresh = sum(member.fresh for member in members)
    reserved = 0
    if any(member.awakened for member in members):
        reserved = (turn + 1) * slots // OLDEST_NEW_EVERY - turn * slots // OLDEST_NEW_EVERY
        reserved = min(fresh, reserved)
    n = len(members)
    places = [(index - turn) % n for index in range(n)]
    awakened = divide(
        slots - reserved,
        [Claim(m.awakened, 1, (place,)) for m, place in zip(members, places, strict=True)],
    )
    new = divide(
        reserved,
        [Claim(m.fresh, 1, (m.oldest_fresh_ms, p)) for m, p in zip(members, places, strict=True)],
    )
    rest = divide(
        slots - sum(awakened) - sum(new),
        [
            Claim(m.holding + m.fresh - given, 1, (place,))
            for m, given, place in zip(members, new, places, strict=True)
        ],
    )
    return [sum(parts) for parts in zip(awakened, new, rest, strict=True)]
