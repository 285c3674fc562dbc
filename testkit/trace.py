"""What happened in a run, in order: a hash over all of it, and the last lines to read.

Two runs of one seed are the same run if and only if their hashes are equal: each event's virtual
time and content goes in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b

from ..runtime.simnet import checksum, describe

LINES_KEPT = 60


class Trace:
    """Takes events as they happen.

    Args:
        now_s: virtual time.
        echo: told each readable line, for `--trace`.
        kept: how many of the last events are kept to be read.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        echo: Callable[[str], None] | None = None,
        kept: int = LINES_KEPT,
    ) -> None:
        self._now_s = now_s
        self._echo = echo
        self._hash = blake2b(digest_size=12)
        self._tail: deque[tuple[float, str, tuple[object, ...], bytes | None]] = deque(maxlen=kept)
        self.events = 0

    def note(self, kind: str, *parts: object) -> None:
        """An event."""
        self._take(kind, parts, None)

    def frame(self, source: str, dest: str, raw: bytes) -> None:
        """A frame that was delivered; only its fingerprint goes into the hash."""
        self._take("frame", (source, dest, len(raw), checksum(raw)), raw)

    def _take(self, kind: str, parts: tuple[object, ...], raw: bytes | None) -> None:
        now_s = self._now_s()
        self.events += 1
        self._hash.update(f"{now_s:.6f} {kind} {parts}\n".encode())
        entry = (now_s, kind, parts, raw)
        self._tail.append(entry)
        if self._echo is not None:
            self._echo(readable(*entry))

    def digest(self) -> str:
        """The hash of all so far."""
        return self._hash.hexdigest()

    def tail(self) -> list[str]:
        """The last events, readable."""
        return [readable(*entry) for entry in self._tail]


def readable(now_s: float, kind: str, parts: tuple[object, ...], raw: bytes | None) -> str:
    """One event as a line."""
    if raw is not None:
        return f"{now_s:11.3f}  {parts[0]} > {parts[1]}: {describe(raw)}"
    return f"{now_s:11.3f}  {kind} {' '.join(map(str, parts))}"
