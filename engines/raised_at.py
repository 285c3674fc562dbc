"""Where user code raised an error, in a few short lines that are kept with the error.

A line reads `orders.py:41 in Orders.run.<locals>.charge`; the newest call comes last, as in a
traceback of Python. Frames of toque and of Python's own machinery for tasks and threads are left
out: what an author looks for is in between. Files are named without the folders that lead to
them, which differ from machine to machine.
"""

from __future__ import annotations

import sysconfig
from collections import deque
from types import TracebackType

from ..runtime.guarded import bounded
from ..runtime.limits import ERROR_PLACE_CHARS_MAX, ERROR_PLACES_MAX

_OURS = __name__.split(".", 1)[0]
_MACHINERY = frozenset({_OURS, "asyncio", "concurrent", "threading", "contextlib", "ray"})
_STDLIB = sysconfig.get_path("stdlib")
_TRACEBACK = BaseException.__dict__["__traceback__"].__get__  # a class may have its own
_PACKAGES = ("/site-packages/", "/dist-packages/")


def places_of(error: BaseException, before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The lines of an error's traceback, oldest first; none if it was not raised by user code.

    Args:
        error: as it was caught.
        before: what is known of where its cause came from (in another run, say); it comes last.
    """
    trace: TracebackType | None = _TRACEBACK(error)
    found: deque[str] = deque(maxlen=ERROR_PLACES_MAX)
    while trace is not None:
        if not _is_machinery(trace):
            found.append(_line(trace))
        trace = trace.tb_next
    found.extend(before)
    return tuple(found)


def _is_machinery(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_globals.get("__name__")
    return type(name) is str and name.split(".", 1)[0] in _MACHINERY


def _line(trace: TracebackType) -> str:
    code = trace.tb_frame.f_code
    text = f"{_file(code.co_filename)}:{trace.tb_lineno} in {code.co_qualname}"
    return bounded(text, ERROR_PLACE_CHARS_MAX)


def _file(name: str) -> str:
    """The file as a reader knows it: within its package folder, the standard library, or alone."""
    for folder in _PACKAGES:
        _, found, rest = name.rpartition(folder)
        if found:
            return rest
    if name.startswith(f"{_STDLIB}/"):
        return name[len(_STDLIB) + 1 :]
    return name.rpartition("/")[2]
