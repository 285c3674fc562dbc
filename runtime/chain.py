"""The chain of a store's commits: which history they belong to, and whether any are missing. Pure.

Commits are numbered over the whole life of a store. Each opening begins a new *lineage*: a random
name that stands in every commit until the next opening. One owner alone commits in a lineage (the
epoch sees to that), so lineage and number together name a commit and all that came before it, as
a checksum over everything written would, and cost nothing to compute. The store keeps the last
openings: with them it can show that what a mark claims is among its own past.

Beside its number a commit finds the link of its lineage, which also says what the main file held
when the log was begun: so the main file and the log of different copies are told apart. In the main
file a link may be torn, since the log has the page that it is in; its checksum tells.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

LINEAGE_BYTES = 16
_LINK = struct.Struct(f"<{LINEAGE_BYTES}sQQ")
_CHECK = struct.Struct("<I")


class Claim(NamedTuple):
    """A commit that was acknowledged; epoch 0: none yet. Later ones are greater."""

    epoch: int
    commit: int
    lineage: bytes


NOTHING_CLAIMED = Claim(0, 0, bytes(LINEAGE_BYTES))


class Link(NamedTuple):
    """What binds commits to their owner, and a log to its main file.

    Attributes:
        lineage: of the owner.
        base: the commit that the main file had in full when the log was begun; 0: none.
        base_bytes: the length of the main file then; it never shrinks.
    """

    lineage: bytes
    base: int
    base_bytes: int

    def packed(self) -> bytes:
        """As it is kept: always of one length, with a checksum."""
        raw = _LINK.pack(*self)
        return raw + _CHECK.pack(zlib.crc32(raw))


def link_from(kept: object) -> Link | None:
    """The link that was kept; None: it is none, or damaged."""
    if not isinstance(kept, bytes) or len(kept) != _LINK.size + _CHECK.size:
        return None
    raw, check = kept[: _LINK.size], kept[_LINK.size :]
    return Link(*_LINK.unpack(raw)) if check == _CHECK.pack(zlib.crc32(raw)) else None


class Opening(NamedTuple):
    """An opening of the store: the epoch it began, that epoch's lineage, the last commit before."""

    epoch: int
    lineage: bytes
    after: int


class Chain(NamedTuple):
    """Where a store stands.

    Attributes:
        commit: the number of its last commit.
        link: the one in force.
        openings: the last ones, oldest first; never empty.
    """

    commit: int
    link: Link
    openings: Sequence[Opening]


def missing_from(chain: Chain, claim: Claim) -> str | None:
    """What a store lacks of what its mark claims, for people; None: nothing."""
    if claim.epoch == 0:
        return None
    newest = chain.openings[-1]
    if claim.epoch > newest.epoch:
        return (
            f"commit {claim.commit} of owner {claim.epoch} was acknowledged, but the store ends "
            f"with commit {chain.commit} of owner {newest.epoch}: it is an older copy"
        )
    ends = [opening.after for opening in chain.openings[1:]] + [chain.commit]
    for opening, end in zip(chain.openings, ends, strict=True):
        if opening.epoch != claim.epoch:
            continue
        if opening.lineage != claim.lineage:
            return (
                f"commit {claim.commit} of owner {claim.epoch} was acknowledged, but the store's "
                f"owner {claim.epoch} was another one: it is a copy that went its own way"
            )
        if end < claim.commit:
            return (
                f"commit {claim.commit} of owner {claim.epoch} was acknowledged, but its commits "
                f"end with {end}: {claim.commit - end} are missing"
            )
        return None
    if claim.epoch < chain.openings[0].epoch and claim.commit <= chain.openings[0].after:
        return None  # longer ago than the store remembers
    return (
        f"commit {claim.commit} of owner {claim.epoch} was acknowledged, and the store knows of no "
        "such owner: it is a copy that went its own way"
    )


def shortage_of(link: Link, main_bytes: int) -> str | None:
    """Why a main file of that length is not whole; None: it may be. SQLite takes what is missing
    at its end for zeros."""
    if main_bytes >= link.base_bytes:
        return None
    return f"the main file has {main_bytes} bytes, but had {link.base_bytes}"


def mismatch_of_parts(chain: Chain, main: tuple[int, Link] | None) -> str | None:
    """Why a store's main file can't be the one that its log belongs to; None: it can.

    Args:
        chain: the store as seen through its log.
        main: the last commit that the main file alone shows, and its link; None: it has none.
    """
    base = chain.link.base
    if not base:
        return None
    if main is None or main[0] < base:
        shown = "nothing" if main is None else f"commit {main[0]}"
        return (
            f"its log goes on from commit {base}, but the main file shows {shown}: they do not "
            "belong together"
        )
    known = {opening.lineage for opening in chain.openings}
    if main[0] > chain.openings[0].after and main[1].lineage not in known:
        return "its log and its main file are of different copies of the store"
    return None
