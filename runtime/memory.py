"""How much memory this process has, for whoever must leave some to others.

Reads /proc; where there is none it says 0, and nobody makes room.
"""

from __future__ import annotations

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell (not Linux)."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
