"""Small libraries, loaded into processes under test, built with the machine's C compiler.

Where there is none, the tests that need it are skipped and say why.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.slow_fsync import compiler


def built(source: Path, folder: Path) -> Path:
    """The library, in a folder."""
    try:
        cc = compiler()
    except SystemExit as missing:
        pytest.skip(f"{source.name} can't be built here: {missing}")
    library = folder / f"{source.stem}.so"
    command = [cc, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return library
