"""Asks a server that runs how its parts are: for `toque doctor`.

`/readyz` answers within two seconds; with a token it names the parts.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from ..runtime.errors import InvalidArgument, ShardUnavailable
from .identity_cache import IDENTITY_PART

_TIMEOUT_S = 10


async def parts_of(url: str, token: str | None) -> dict[str, bool]:
    """For each part of the server whether it does its work; nothing while it drains.

    Raises:
        ShardUnavailable: no server answers there.
    """
    return await asyncio.to_thread(_ask, url, token)


def _ask(url: str, token: str | None) -> dict[str, bool]:
    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(f"{url!r:.200} is no address of a server; it begins with http.")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/readyz", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            raw = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raw = error.read()
    except OSError as error:
        why = getattr(error, "reason", error)  # urllib says only that it could not open it
        raise ShardUnavailable(f"no server answers at {url}: {why}.") from None
    try:
        body: dict[str, Any] = json.loads(raw)
        parts = {str(part): bool(is_up) for part, is_up in body.get("parts", {}).items()}
        if not parts and "reason" in body:  # the registry is down: no token of its is known
            parts = {IDENTITY_PART: False}
        return parts
    except (ValueError, AttributeError):
        raise ShardUnavailable(f"what answers at {url} is no toque server.") from None
