"""Slows those who present no valid token, per address. Pure: time comes in.

An address may fail `AUTH_FAILURES_BURST` times at once and then so often a second; what is beyond
that is told to come back later. Only failures count, so a valid token from the same address
always passes. Memory is bounded: the address whose failure is longest ago is forgotten first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from ..runtime import limits


class Failures:
    """Failed attempts by address.

    Args:
        burst: how many an address may make at once.
        per_second: how many more a second.
    """

    def __init__(
        self,
        burst: int = limits.AUTH_FAILURES_BURST,
        per_second: float = limits.AUTH_FAILURES_PER_SECOND,
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Network -> how many failures it may still make, as of when."""

    def __len__(self) -> int:
        return len(self._left)

    def is_slowed(self, address: str, now: float) -> bool:
        """Whether the next failure is beyond what the address may make."""
        return self._left_at(_network(address), now) < 1

    def note(self, address: str, now: float) -> int | None:
        """Count a failure; if it is one too many, the time to wait in ms.

        Args:
            address: where it came from.
            now: seconds, of any clock that does not go back.
        """
        network = _network(address)
        left = self._left_at(network, now)
        late = left < 1
        self._left[network] = (left if late else left - 1, now)
        self._left.move_to_end(network)
        while len(self._left) > limits.AUTH_ADDRESSES_MAX:
            self._left.popitem(last=False)
        return max(1, round((1 - left) / self._per_second * 1000)) if late else None

    def _left_at(self, network: str, now: float) -> float:
        left, noted = self._left.get(network, (float(self._burst), now))
        return min(self._burst, left + max(0.0, now - noted) * self._per_second)


def _network(address: str) -> str:
    """Who is taken for one: an address, and of IPv6 the /64 that one customer has."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
