"""What a service manager is told over its datagram socket (the protocol of `sd_notify`).

Ready, stopping, a line on how things stand, and a sign of life while it asks for one. Without a
socket nothing is sent; a manager that does not listen harms nobody.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping

_log = logging.getLogger("toque.server")


class Notifier:
    """Tells the service manager that started this process, if one did.

    Args:
        environment: has `NOTIFY_SOCKET` (a path, or an abstract name after `@`) and, if signs of
            life are asked for, `WATCHDOG_USEC`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        period = environment.get("WATCHDOG_USEC", "")
        self._sign_s = int(period) / 2_000_000 if period.isascii() and period.isdigit() else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """It serves. From now on the running loop shows that it turns, if that is asked for."""
        self._send(f"READY=1\nSTATUS={status}")
        if self._address and self._sign_s:
            self._sign(asyncio.get_running_loop())

    def stopping(self, status: str) -> None:
        """It ends, in good order."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def close(self) -> None:
        """Give no more signs of life."""
        if self._timer is not None:
            self._timer.cancel()

    def _sign(self, loop: asyncio.AbstractEventLoop) -> None:
        self._send("WATCHDOG=1")
        self._timer = loop.call_later(self._sign_s, self._sign, loop)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
                end.setblocking(False)
                end.sendto(text.encode(), self._address)
        except OSError as error:
            _log.debug("the service manager was not told %r: %s", text, error)
