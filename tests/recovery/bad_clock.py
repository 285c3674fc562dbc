"""Wall clocks that are set or go too fast, while the processes that read them run: bad_clock.c.

Each process may have a clock of its own, as on machines of its own.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tests.recovery.preloaded import built

SOURCE = Path(__file__).with_name("bad_clock.c")
EVERYBODY = 0
_ENTRIES = 16
_ENTRY = struct.Struct("=4qQ")
_WHOSE, _AHEAD_NS, _PPB, _SINCE_NS, _ASKED = range(5)


class BadClock:
    """What the library is told, and what it counts."""

    def __init__(self, library: Path, control: Path) -> None:
        self.environment = {"LD_PRELOAD": str(library), "BAD_CLOCK": str(control)}
        self._entries = {EVERYBODY: 0}
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _ENTRIES * _ENTRY.size)

    def put(self, ahead_s: float, whose: int = EVERYBODY) -> None:
        """Set a process's clock so far ahead of the true time, or back if it is negative.

        Args:
            whose: the process; by default all that have no clock of their own.
        """
        self._write(self._entry(whose), _AHEAD_NS, round(ahead_s * 1e9))

    def hurry(self, by: float, whose: int = EVERYBODY) -> None:
        """Have a clock go faster from now on: by 0.5, three seconds of it are two true ones."""
        entry = self._entry(whose)
        self._write(entry, _SINCE_NS, time.time_ns())
        self._write(entry, _PPB, round(by * 1e9))

    def right(self) -> None:
        """All clocks are right again, and nobody has one of their own."""
        for entry in self._entries.values():
            for which in (_WHOSE, _AHEAD_NS, _PPB):
                self._write(entry, which, 0)
        self._entries = {EVERYBODY: 0}

    def asked(self, whose: int = EVERYBODY) -> int:
        """How often it was read."""
        return int(_ENTRY.unpack_from(self._map, self._entry(whose) * _ENTRY.size)[_ASKED])

    def close(self) -> None:
        """Let go of the numbers."""
        self._map.close()

    def _entry(self, whose: int) -> int:
        if whose not in self._entries:
            entry = len(self._entries)
            assert entry < _ENTRIES, "that many clocks are not kept"
            self._entries[whose] = entry
            self._write(entry, _AHEAD_NS, self._get(0, _AHEAD_NS))  # as it was until now
            self._write(entry, _WHOSE, whose)
        return self._entries[whose]

    def _get(self, entry: int, which: int) -> int:
        return int(_ENTRY.unpack_from(self._map, entry * _ENTRY.size)[which])

    def _write(self, entry: int, which: int, value: int) -> None:
        struct.pack_into("=q", self._map, entry * _ENTRY.size + 8 * which, value)


@contextlib.contextmanager
def bad_clock(folder: Path) -> Iterator[BadClock]:
    """The library, built into a folder. All clocks are right at first."""
    library, control = built(SOURCE, folder), folder / "bad_clock.told"
    control.write_bytes(bytes(_ENTRIES * _ENTRY.size))
    clock = BadClock(library, control)
    try:
        yield clock
    finally:
        clock.close()
