"""A server that a test started: `python -m toque.loadtest.served dev ...`, as `toque dev ...`.

It ends in good order when its stdin closes. So it ends with the test, whatever ended that one.
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Thread

from ..api.cli import main


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass  # nothing is said there
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    Thread(target=_end_with_stdin, daemon=True).start()
    main()
