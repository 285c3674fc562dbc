"""The history of an instance, as a value and as a file: what replay needs, and how it ended.

A file is JSON with the format's number in it; another number is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..engines.run_port import Plan
from ..engines.status import FINISHED
from ..runtime.errors import InvalidArgument
from ..runtime.ids import split_engine_key

FORMAT = 1


class History(msgspec.Struct, frozen=True):
    """The journal of one instance, with all payloads in the clear: keep files of it as you keep
    the data itself. Read by `histories`, or from `SimInstance.history`.

    Attributes:
        format: of this value.
        workflow: the workflow's name.
        status: of the instance.
        plan: what a run begins with; see `engines.run_port`.
        payloads: of the events that were not taken, by number.
        output: JSON, once it is complete.
        error: name of the error that it ended with; empty: none.
    """

    format: int
    workflow: str
    status: str
    plan: Plan
    payloads: dict[int, bytes]
    output: bytes | None
    error: str

    @property
    def id(self) -> str:
        """The instance's id."""
        return split_engine_key(self.plan.key)[2]

    @property
    def is_finished(self) -> bool:
        """Whether the instance has ended."""
        return self.status in FINISHED

    def copied(self) -> History:
        """The same, with records of its own."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self), type=History)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, as JSON."""
        Path(path).write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what `save` wrote.

        Raises:
            InvalidArgument: it is no such file.
        """
        try:
            found = msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise InvalidArgument(f"{path} is no history of an instance: {error}.") from None
        if found.format != FORMAT:
            raise InvalidArgument(
                f"{path} has format {found.format} of histories; this version reads {FORMAT}."
            )
        return found
