"""What is to be sent: streams of operations as plain data, and their parts for processes. Pure.

A load is what every scenario is made of. It goes to other processes as JSON, and each process
sends its part at its part of the rate.
"""

from __future__ import annotations

import msgspec

from .arrivals import EVEN, parts_of

CREATE, BATCH, CREATE_WAIT = "create", "batch", "create-wait"
STATUS, LIST, EVENT = "status", "list", "event"
PAUSE_RESUME, TERMINATE = "pause-resume", "terminate"
OPERATIONS = (CREATE, CREATE_WAIT, STATUS, LIST, EVENT, PAUSE_RESUME, TERMINATE)
"""Those that people can mix."""


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of one kind, or a mix of them.

    Attributes:
        group: what they are counted under; `""`: the name of each operation.
        workflow: what is created.
        params: JSON.
        waiter: the workflow of instances that are sent events, paused or terminated.
        weights: of the operations.
        rate: operations a second, at times fixed before (an open loop); None: as fast as
            answers come (a closed loop).
        seconds: for how long.
        count: how many at most; None: as many as time allows.
        in_flight: calls under way at most.
        arrivals, begin: see `arrivals`.
        wait_ms: creates wait so long for the end of what they made.
    """

    group: str
    workflow: str
    params: str = "null"
    waiter: str = ""
    weights: dict[str, float] = msgspec.field(default_factory=lambda: {CREATE: 1.0})
    rate: float | None = None
    seconds: float
    count: int | None = None
    in_flight: int
    arrivals: str = EVEN
    begin: float = 0.0
    wait_ms: int = 0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Streams that go on at once.

    Attributes:
        prefix: what the ids of all instances begin with.
        seed: of all that is drawn.
        retry_for_s: how long an operation whose outcome is not known, or that was refused for
            now, is tried again; 0: not at all.
    """

    prefix: str
    seed: str
    streams: list[Stream]
    part: int = 0
    retry_for_s: float = 0.0

    def id_of(self, group: str, number: int) -> str:
        """The id of an instance."""
        return f"{self.prefix}.{self.part}.{group}.{number}"

    def ids(self) -> list[str]:
        """The ids of all instances of a load that only creates, and so many as it says."""
        return [
            self.id_of(stream.group, number)
            for stream in self.streams
            for number in range(stream.count or 0)
        ]


def group_of(instance_id: str, prefix: str) -> str:
    """The group of an instance, by its id."""
    return instance_id[len(prefix) :].split(".", 3)[2]


def split(load: Load, parts: int) -> list[Load]:
    """The load in parts that together are it. None is left without room for a call."""
    found: list[Load] = []
    for part in range(parts):
        streams = []
        for stream in load.streams:
            count = stream.count
            streams.append(
                msgspec.structs.replace(
                    stream,
                    rate=None if stream.rate is None else stream.rate / parts,
                    begin=0.0 if stream.rate is None else part / stream.rate,  # not all at once
                    count=None if count is None else parts_of(count, parts)[part],
                    in_flight=max(1, parts_of(stream.in_flight, parts)[part]),
                )
            )
        found.append(
            msgspec.structs.replace(load, streams=streams, part=part, seed=f"{load.seed}/{part}")
        )
    return found


def bounds(weights: dict[str, float]) -> list[float]:
    """Where each weight ends, with all of them between 0 and 1."""
    total, found, so_far = sum(weights.values()), list[float](), 0.0
    for weight in weights.values():
        so_far += weight
        found.append(so_far / total)
    found[-1] = 1.0
    return found
