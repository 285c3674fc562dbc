"""An account's streams in a shard, as they can be sent to another process.

What travels is the folder and the names of the codecs; the process finds them again, or its seal
is absent: then it writes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..runtime.payload_codec import Carried
from ..runtime.sealed_blobs import SealedStore
from .codec_names import seal_of


class StreamStore(SealedStore):
    """Where it is sent, codecs are found again by their names: keys do not travel."""

    def __reduce__(self) -> Any:
        return _elsewhere, (str(self.folder), self.seal.carried())


def _elsewhere(folder: str, carried: Carried) -> StreamStore:
    return StreamStore(Path(folder), seal_of(carried))
