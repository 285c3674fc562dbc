"""What a shard and a worker say to each other, in frames of several messages.

Runs are numbered by the shard. A run begins with `Open`, its records in chunks that the worker
asks for (`More`), and `Go`. Each `Act` and the `Go` is answered by one `Turn` at least, so the
shard knows when a run has heard all that it was told. Only data crosses.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..runtime.codec import pack
from ..runtime.errors import WireError
from .run_port import Plan, Starts, Turn

VERSION = 3


class _Message(msgspec.Struct, array_like=True, gc=False):
    """One thing said."""


# --- to the worker ---


class Open(_Message, tag="open"):
    """A run to get ready; `plan` is without records and events."""

    run: int
    plan: Plan


class Records(_Message, tag="records"):
    """Some of the records of a run's journal, each packed."""

    run: int
    records: list[bytes]


class Event(_Message, tag="event"):
    """A buffered event."""

    run: int
    seq: int
    event_type: str
    at_ms: int
    payload: bytes


class Go(_Message, tag="go"):
    """All that a run needs has been sent: begin."""

    run: int


class Act(_Message, tag="act"):
    """See `run_port.Run.act`."""

    run: int
    what: str
    now_ms: int
    args: list[Any]


class Start(_Message, tag="start"):
    """What led to these attempts is durable: run their bodies."""

    run: int
    starts: Starts


class Close(_Message, tag="close"):
    """The run is not wanted any more."""

    run: int


class Ping(_Message, tag="ping"):
    """Say something. Carries the shard's time."""

    now_ms: int


# --- to the shard ---


class Ready(_Message, tag="ready"):
    """The worker has loaded its code, or could not."""

    version: int
    pid: int
    error: WireError | None


class More(_Message, tag="more"):
    """The next records, please."""

    run: int


class Part(_Message, tag="part"):
    """Some of the records that the next turn brings, each packed."""

    run: int
    records: list[bytes]


class Turned(_Message, tag="turned"):
    """A turn; `acts`: how many acts of the shard it has seen."""

    run: int
    acts: int
    turn: Turn


class Ahead(_Message, tag="ahead"):
    """How a step has ended, told before `run` goes on: it stands if no turn follows.

    The turn that follows does not bring it again.
    """

    run: int
    turn: Turn


class Failed(_Message, tag="failed"):
    """The run can't be had here; it is closed."""

    run: int
    error: WireError


class Pong(_Message, tag="pong"):
    """The worker's loop turns."""


ToWorker = Open | Records | Event | Go | Act | Start | Close | Ping
ToShard = Ready | More | Part | Turned | Ahead | Failed | Pong

to_worker = msgspec.msgpack.Decoder(list[ToWorker])
to_shard = msgspec.msgpack.Decoder(list[ToShard])


def encoded(message: _Message) -> bytes:
    """A message by itself."""
    return pack(message)


def frame_of(parts: list[bytes]) -> bytes:
    """Messages that are encoded already, as one frame: a MessagePack array."""
    return b"\xdd" + len(parts).to_bytes(4, "big") + b"".join(parts)
