"""Errors as HTTP answers: status, headers and the standard envelope.

`errors[0].code` is the number that Cloudflare's clients know; beside it `toque` holds the string
code and the typed data, from which the SDK makes the same error class again. Faults of the
server itself are logged in full and told without details.
"""

from __future__ import annotations

import json
import logging
import math
from typing import Any

from ..runtime import limits
from ..runtime.errors import MethodNotAllowed, SystemFault, ToqueError, Unauthorized

log = logging.getLogger("toque.api")
JSON = (b"content-type", b"application/json")
_RETRIED_STATUSES = frozenset({429, 503, 504})

Headers = list[tuple[bytes, bytes]]


def envelope(number: int, message: str, code: str, data: dict[str, Any]) -> bytes:
    """The body of a failed call."""
    message = message[: limits.ERROR_MESSAGE_CHARS_MAX]
    error = {"code": number, "message": message, "toque": {"code": code, "data": data}}
    body = {"result": None, "success": False, "errors": [error], "messages": []}
    return json.dumps(body, default=str).encode()  # escapes what UTF-8 can't carry


def _retry_after(error: ToqueError) -> tuple[bytes, bytes]:
    wait_ms = error.data.get("retry_after_ms", limits.RETRY_AFTER_MS)
    return b"retry-after", b"%d" % max(1, math.ceil(wait_ms / 1000))


def answer_of(error: BaseException) -> tuple[int, Headers, bytes]:
    """`(status, headers, body)` of any error."""
    if not isinstance(error, ToqueError) or type(error) is ToqueError:
        log.error("a request failed inside", exc_info=error)
        body = envelope(
            ToqueError.number,
            "the server failed; the reason is in its log.",
            ToqueError.code,
            {},
        )
        return 500, [JSON], body
    headers: Headers = [JSON]
    if error.status in _RETRIED_STATUSES:
        headers.append(_retry_after(error))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.data.get("allowed", [])).encode()))
    if isinstance(error, SystemFault):
        log.debug("a request failed: %s: %s", error.code, error)  # weather comes in floods
    return error.status, headers, envelope(error.number, str(error), error.code, error.data)
