"""What user code prints in a shard actor goes to the shard's log, line by line.

Ray keeps a worker's output among its session's files, which go when the cluster stops; the log
stays with the data and is bounded. A line without its end is written at the next `flush`.
"""

from __future__ import annotations

import io
import logging

from ..runtime import limits


class Printed(io.TextIOBase):
    """A text stream that writes lines to a logger.

    Args:
        logger: where lines go.
        level: as what.
    """

    def __init__(self, logger: logging.Logger, level: int) -> None:
        super().__init__()
        self._logger = logger
        self._level = level
        self._rest = ""
        self._saying = False

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Write the lines that are whole, keep the rest."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._say(line)
        if len(self._rest) > limits.ERROR_MESSAGE_CHARS_MAX:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write what has no end yet."""
        rest, self._rest = self._rest, ""
        if rest:
            self._say(rest)

    def _say(self, line: str) -> None:
        if self._saying:  # a handler that fails prints why, on stderr, which may be this
            return
        self._saying = True
        try:
            self._log(line)
        finally:
            self._saying = False

    def _log(self, line: str) -> None:
        self._logger.log(self._level, "%s", line[: limits.ERROR_MESSAGE_CHARS_MAX])
