"""The source of code, for graphs of its workflows: what this process began with, what is stored.

Files are read once, at the start, so that a later edit is not taken for what runs. Code without a
file (a notebook, a shell) or in no known encoding has no source here.
"""

from __future__ import annotations

import sys
import tokenize
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from ..engines.workflow import WorkflowDefinition
from .versions import Files, Sources

Stored = Callable[[str], Awaitable[Files | None]]


def sources_of(definitions: Iterable[WorkflowDefinition], stored: Stored) -> Sources:
    """Gives the files of code by its hash: of some workflows that are here, else what is stored."""
    known: dict[str, dict[str, str]] = {}
    for definition in definitions:
        file = getattr(sys.modules.get(definition.entry.__module__), "__file__", None)
        if file is None:
            continue
        try:
            with tokenize.open(file) as opened:
                known.setdefault(definition.code_hash, {})[Path(file).name] = opened.read()
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue

    async def sources(account: str, code_hash: str) -> Files | None:
        here = known.get(code_hash)
        return here if here is not None else await stored(code_hash)

    return sources
