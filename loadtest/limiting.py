"""The running limit of a test: set while it lasts, and put back whatever becomes of it.

Only on a server that was there before: one that the test started ends with it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec

from ..runtime.errors import InvalidArgument, ToqueError
from .limit_note import Note, claimed, keep, left_on, read
from .options import Options
from .scenarios import limited
from .targets_http import Target

_log = logging.getLogger("toque.loadtest")


@contextlib.asynccontextmanager
async def limit_held(target: Target, options: Options) -> AsyncIterator[None]:
    """The running limit that was asked for; before it, what a test that was killed had left.

    Raises:
        InvalidArgument: the token may not set it, or another test has set it now.
    """
    is_kept = target.shown.kind == "http" and target.shown.url is not None
    if is_kept:
        await _put_back_left(target)
    if options.limit is None:
        yield
        return
    note = Note(target.shown.url or "", target.account, limited(options), options.limit)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(claimed(note)) if is_kept else None
        if file is not None:  # on the disk before the limit is another
            before = await target.limit_of(note.workflow)
            keep(msgspec.structs.replace(note, before=before), file)
        try:
            before = await target.limit(note.workflow, options.limit)
        except InvalidArgument:
            if file is not None:
                file.unlink(missing_ok=True)
            raise
        try:
            yield
        finally:
            try:
                await target.limit(note.workflow, before)
            except ToqueError as error:  # what was measured is worth more than this failure
                _tell_lost(note, before, error)
            else:
                if file is not None:
                    file.unlink(missing_ok=True)


async def _put_back_left(target: Target) -> None:
    """What tests left that were killed, unless somebody has changed it since."""
    for left in left_on(target.shown.url or "", target.account):
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(claimed(left))
            except InvalidArgument:
                continue  # that test runs
            note = read(file)
            if note is None:
                continue
            try:
                if await target.limit_of(note.workflow) == note.set_to:
                    await target.limit(note.workflow, note.before)
                    _log.warning(
                        "the running limit of %s is %s again; a test that was killed had set it "
                        "to %s.",
                        note.whose, note.before, note.set_to,
                    )  # fmt: skip
            except ToqueError as error:
                _tell_lost(note, note.before, error)
            else:
                file.unlink(missing_ok=True)


def _tell_lost(note: Note, before: int | None, error: ToqueError) -> None:
    _log.warning(
        "the running limit of %s could not be put back, set it to %s: %s", note.whose, before, error
    )
