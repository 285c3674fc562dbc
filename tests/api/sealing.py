"""A codec that other processes find by its name."""

from __future__ import annotations

FLIP = bytes(byte ^ 0x5A for byte in range(256))


class Flip:
    """A toy that hides things from a test."""

    id = "flip"
    key = "the key that stays at home"

    def encode(self, raw: bytes) -> bytes:
        """As it is to be on disk."""
        return raw.translate(FLIP)

    decode = encode


codec = Flip()
NAME = f"{__name__}:codec"
