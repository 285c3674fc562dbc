"""The Gatekeeper's answer to one SousChef, by the number of workflows that want more than there is.

Against encoding and decoding that call and its answer, which it takes at least. Each workflow has
one SousChef; all of them want ten times their share, so that every answer divides the slots.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from toque.gatekeeper.messages import CycleReply, CycleRequest
from toque.gatekeeper.slots import LeaseBook

from . import Row, Sample, in_turns

SHARE = 5
_encode = msgspec.msgpack.Encoder().encode
_request = msgspec.msgpack.Decoder(CycleRequest).decode
_reply = msgspec.msgpack.Decoder(CycleReply).decode


def request(number: int, seq: int) -> CycleRequest:
    """A report of a SousChef that wants ten times its share."""
    return CycleRequest(f"a/w{number}/0", 1, seq, 0, 10 * SHARE, 0, 1_000 + number, 0, 0, 0, False)


class Cycle:
    """A book of so many workflows, all of them short of slots."""

    def __init__(self, workflows: int) -> None:
        self._workflows = workflows
        self._book = LeaseBook(100 * SHARE * workflows)
        self._seq = 1
        for number in range(workflows):
            self._book.on_request(request(number, self._seq), 1_000)
        self._book.limit = SHARE * workflows

    def answers_us(self, calls: int) -> float:
        """CPU microseconds of an answer."""
        self._seq += 1
        asked = [request(number % self._workflows, self._seq) for number in range(calls)]
        start = time.process_time()
        for one in asked:
            self._book.on_request(one, 1_000 + self._seq)
        return (time.process_time() - start) / calls * 1e6


def codec_us(calls: int) -> float:
    """CPU microseconds to encode and decode a call and its answer."""
    asked, reply = request(1, 1), CycleReply(1, SHARE, 1_000)
    start = time.process_time()
    for _ in range(calls):
        _request(_encode(asked))
        _reply(_encode(reply))
    return (time.process_time() - start) / calls * 1e6


async def measure(folder: Path, scale: float) -> list[Row]:
    """With 10, 100 and 2,000 workflows."""
    found = []
    for workflows in (10, 100, 2_000):
        cycle = Cycle(workflows)
        calls = max(2, int(min(workflows, 60) * scale))

        async def layer(cycle: Cycle = cycle, calls: int = calls) -> Sample:
            return (cycle.answers_us(calls),)

        async def alone(calls: int = calls) -> Sample:
            return (codec_us(20 * calls),)

        ((us, bare_us),) = await in_turns(layer, alone)
        what = f"answer, {workflows:,} workflows"
        found.append(Row("gatekeeper", what, us, "the messages' encoding", bare_us))
    return found
