"""Which pages of a store are compared next, and when: all of them, in small parts. Pure.

What was left when the store was opened comes first and soon; then all, slowly, again and again.
"""

from __future__ import annotations

from . import limits


class Scrub:
    """The way through a store's pages.

    Args:
        page: the first one that was not compared as yet.
        now_s: the time.
    """

    def __init__(self, page: int, now_s: float) -> None:
        self._page = page
        self._is_first = True
        self._due_s = now_s

    def left_s(self, now_s: float) -> float:
        """Seconds until some are due."""
        return self._due_s - now_s

    def take(self, pages: int, now_s: float) -> tuple[int, int]:
        """The next ones, as first and count; they count as compared.

        Args:
            pages: how many there are.
            now_s: the time.
        """
        first = self._page
        self._page += limits.SCRUB_PAGES
        wait_ms = limits.SCRUB_FIRST_MS if self._is_first else limits.SCRUB_EVERY_MS
        if self._page > pages:
            self._page, self._is_first = 1, False
            wait_ms = limits.SCRUB_REST_MS
        self._due_s = now_s + wait_ms / 1000
        return first, limits.SCRUB_PAGES
