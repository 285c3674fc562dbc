"""What the command line asked for: plain values, so that it needs nothing that a test needs.

Checked by `options.resolved` and by whoever opens the target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..api.cli_flags import Flags

HOW_TO_INSTALL = (
    "install toque with its extra 'loadtest'; in a clone: .venv/bin/pip install -e '.[loadtest]', "
    "else: pip install 'path/to/toque[loadtest]'."
)
"""A path, since the name alone may be somebody else's project where packages are found by name."""


class Request(NamedTuple):
    """A test.

    Attributes:
        flags: the options that every command takes.
        scenario, given: for `options.resolved`.
        fresh, embedded, ray, shards: which target.
        out, html: files to write.
        quiet: show no progress.
    """

    flags: Flags
    scenario: str
    given: dict[str, Any]
    fresh: bool
    embedded: bool
    ray: bool
    shards: int | None
    out: Path | None
    html: Path | None
    quiet: bool
