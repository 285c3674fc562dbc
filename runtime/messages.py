"""What travels between shards: frames of calls and replies.

A frame is everything that one process had to say to one shard (or back) in one turn of its
event loop. Arguments and results are MessagePack inside MessagePack (`Raw`), so that a router
never decodes them. `WIRE_VERSION` is in every frame; a peer of another version is refused.
"""

from __future__ import annotations

import msgspec

WIRE_VERSION = 2


class Call(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A call to an entity.

    Attributes:
        id: chosen by the caller, unique on its link.
        kind, key: the entity.
        method: a public method of its class.
        args: MessagePack array of positional arguments.
        chain: the entities that wait for this call, outermost first (for cycle detection).
    """

    id: int
    kind: str
    key: str
    method: str
    args: msgspec.Raw
    chain: tuple[tuple[str, str], ...] = ()


class Reply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to a call: a result, or an error as `errors.to_wire` writes it."""

    id: int
    ok: bool
    body: msgspec.Raw


class Frame(msgspec.Struct, array_like=True, gc=False):
    """One batch. `epoch` is the shard's, in frames of replies; 0 in frames of calls."""

    version: int
    epoch: int
    calls: list[Call]
    replies: list[Reply]
