"""What a work item is: a part of what clients do in a run."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ..scenario import Run


class Work:
    """One kind of work; each has a file. A run has those that its seed draws.

    Attributes:
        name: as in `Focus.work`.
        counts: what it counts among the faults; each must come up in a campaign.
        part_of: in how many of a hundred seeds it is.
    """

    name: ClassVar[str]
    counts: ClassVar[tuple[str, ...]] = ()
    part_of: ClassVar[int] = 100

    def __init__(self, run: Run) -> None:
        self.run = run
        self.world = run.world

    async def prepare(self) -> None:
        """Before any work begins; there are no faults yet."""

    def begin(self) -> Iterable[Awaitable[None]]:
        """What is done while there are faults; it must end soon after they have."""
        return ()

    async def judge(self) -> None:
        """Everything has ended: is all as it must be?"""
