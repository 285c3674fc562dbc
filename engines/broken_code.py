"""Code that does not load: tried again ever more seldom, whoever asks, and told once.

A worker finds out, at the price of a process. Until it is worth trying again, all who want that
code are refused at once, with what it said. Pure: times come in.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..runtime import limits
from ..runtime.errors import ProgramRunsAtImport, ToqueError, WorkflowLoadError

_log = logging.getLogger("toque.engines")
Code = tuple[str, str]
"""The account and the hash of its code."""


@dataclass(slots=True)
class _Broken:
    error: ToqueError
    tries: int
    until: float


class BrokenCode:
    """What is known of code that does not load. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._known: dict[Code, _Broken] = {}

    def check(self, code: Code, now: float) -> None:
        """Refuse code that failed a short while ago.

        Raises:
            WorkflowLoadError: as it did; `data["retry_ms"]` says when to ask again.
        """
        known = self._known.get(code)
        if known is None:
            return
        if now < known.until:
            left_ms = int((known.until - now) * 1_000) + 1
            raise WorkflowLoadError(known.error.message, {**known.error.data, "retry_ms": left_ms})
        known.until = now + limits.CODE_RETRY_MS / 1_000  # one tries, for all

    def failed(self, code: Code, error: ToqueError, now: float) -> None:
        """It did not load, once more."""
        if isinstance(error, ProgramRunsAtImport):
            return  # that ends its instances: there is nothing to try again
        known = self._known.get(code)
        tries = 0 if known is None else known.tries + 1
        if known is None or known.error.message != error.message:
            _log.error("code %.12s of account %s does not load: %s", code[1], code[0], error)
        if known is None and len(self._known) >= limits.BROKEN_CODE_KEPT_MAX:
            del self._known[next(iter(self._known))]
        wait_ms = min(limits.CODE_RETRY_MS << min(tries, 30), limits.CODE_RETRY_MAX_MS)
        self._known[code] = _Broken(error, tries, now + wait_ms / 1_000)

    def loaded(self, code: Code) -> None:
        """It does load."""
        if self._known.pop(code, None) is not None:
            _log.warning("code %.12s of account %s loads again", code[1], code[0])

    def told(self) -> list[str]:
        """What does not load, and why, for people."""
        return [
            f"code {code_hash:.12} of account {account}: {known.error.message}"
            for (account, code_hash), known in self._known.items()
        ]
