"""Named points at which a test ends or stops a process, to see what survives. Off in earnest.

    TOQUE_FAULT_POINT=commit.written:3:kill

The process kills itself (SIGKILL) the third time that it comes to that point; with `stop` it stops
itself (SIGSTOP) and goes on when it is told to. Without the variable a point is a call of an empty
function. A point that is named wrongly is refused when the process starts.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping

from .errors import InvalidArgument

VARIABLE = "TOQUE_FAULT_POINT"
POINTS = {
    "commit.begin": "a batch is to be committed; BEGIN has not been said",
    "commit.owned": "the epoch was checked in the transaction; no row has been written",
    "commit.written": "all rows are written; COMMIT has not been said",
    "commit.done": "COMMIT has returned; nobody has been told",
    "checkpoint.begin": "the log is to be copied into the main file",
    "checkpoint.copied": "the main file has all that is in the log; its checksums have not changed",
    "checkpoint.sealed": "the checksums are on disk; the log has not been begun anew",
    "reply.send": "what was answered is durable; the frame has not left",
    "outbox.send": "a message is durable; it has not been sent",
    "outbox.delete": "the receiver has confirmed a message; its row is still there",
    "alarm.delete": "an alarm's handler has ended well; its row is still there",
}
"""What has happened at each point, and what has not."""
_ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

_log = logging.getLogger("toque.faults")


class FaultPoint:
    """One armed point.

    Args:
        text: `point:count` or `point:count:action`.

    Raises:
        InvalidArgument: it is not of that form.
    """

    def __init__(self, text: str) -> None:
        point, _, rest = text.partition(":")
        count, _, action = rest.partition(":")
        if point not in POINTS or not count.isdecimal() or action not in ("", *_ACTIONS):
            raise InvalidArgument(
                f"{VARIABLE}={text!r}: use point:count or point:count:action, with a point of "
                f"{', '.join(POINTS)} and an action of {', '.join(_ACTIONS)}. "
                "Right: commit.written:3:kill."
            )
        self.point = point
        self._left = int(count)
        self._signal = _ACTIONS[action or "kill"]
        self._lock = threading.Lock()  # commits run in threads

    def reach(self, point: str) -> None:
        """The process has come to a point."""
        if point != self.point:
            return
        with self._lock:
            self._left -= 1
            is_due = self._left == 0
        if is_due:  # sent to this thread: sent to the process, it may come when this has gone on
            signal.pthread_kill(threading.get_ident(), self._signal)


def _pass(point: str) -> None:
    """Nothing is armed."""


def armed(environment: Mapping[str, str]) -> Callable[[str], None]:
    """What `reach` is in a process with that environment."""
    text = environment.get(VARIABLE, "")
    if not text:
        return _pass
    _log.warning("%s=%s: this process ends or stops itself there", VARIABLE, text)
    return FaultPoint(text).reach


reach = armed(os.environ)
