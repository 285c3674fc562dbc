"""The codec of one of the simulated accounts: what it writes is not to be read as it is."""

from __future__ import annotations

from toque.engines.codec_names import codecs_of
from toque.runtime.payload_codec import Codecs

SEALED_ACCOUNT = "acme"
HEAD = b"\x00\x04flip"


class Flip:
    """Turns all bits."""

    id = "flip"
    _TABLE = bytes(255 - n for n in range(256))

    def encode(self, raw: bytes) -> bytes:
        """As it is on disk."""
        return raw.translate(self._TABLE)

    def decode(self, kept: bytes) -> bytes:
        """As it was."""
        return kept.translate(self._TABLE)


def sealing() -> Codecs:
    """The codecs of all accounts, by their names, so that workers find them too."""
    return codecs_of({SEALED_ACCOUNT: f"{__name__}:Flip"})
