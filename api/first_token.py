"""The first operator token of a data directory: made once, handed over once.

A mark in the directory says that it has been handed over. Until the mark is there each start gives
the same token a new text, so a process that dies in between locks nobody out. Who has lost every
operator token removes the mark and starts again. At rest there is only the token's digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ..runtime.files import write_atomically
from .accounts import Accounts
from .auth import ADMIN, OPERATOR

MARK = "first-token-made"


async def hand_over(
    accounts: Accounts, data: Path, file: Path | None, tell: Callable[[str], None]
) -> None:
    """Make the token if it has not been handed over: write it to `file`, or `tell` it.

    Raises:
        OSError: the file can't be written; the next start tries again.
    """
    mark = data / MARK
    if await asyncio.to_thread(mark.exists):
        return
    made = await accounts.create_token(OPERATOR, "first", ADMIN, request_id=MARK)
    if file is None:
        tell(made.text)
    else:
        await asyncio.to_thread(write_atomically, file, made.text.encode() + b"\n", 0o600)
    await asyncio.to_thread(write_atomically, mark, made.record.id.encode() + b"\n")
