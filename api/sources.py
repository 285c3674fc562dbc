"""The source of the code that this process was started with, for graphs of its workflows.

Files are read once, at the start, so that a later edit is not taken for what runs. Code without a
file (a notebook, a shell) or in no known encoding has no source here.
"""

from __future__ import annotations

import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

from ..engines.workflow import WorkflowDefinition
from .versions import Files, Sources


def sources_of(definitions: Iterable[WorkflowDefinition]) -> Sources:
    """Gives the files that define some workflows, by the hash of their code."""
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
        return known.get(code_hash)

    return sources
