"""The files of the page, each with its headers. Read once, when a server starts.

The headers let the page load nothing from elsewhere, run no inline script, turn no text into HTML
(trusted types), and stand in no frame. Browsers ask again each time and are told by a tag that
nothing changed: so a new version of the server is a new page at the next load.
"""

from __future__ import annotations

from hashlib import blake2b
from importlib.resources import files
from typing import NamedTuple

PAGE = "index.html"
"""What a browser gets that names no file."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The Content-Security-Policy of all files."""

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Asset(NamedTuple):
    """A file: its content, its headers, and the tag that names just this content."""

    content: bytes
    headers: dict[str, str]
    etag: str


def load_assets() -> dict[str, Asset]:
    """All files of the page, by name."""
    found = {}
    for entry in files(__package__).iterdir():
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            etag = f'"{blake2b(content, digest_size=12).hexdigest()}"'
            headers = {"content-type": kind, **_HEADERS, "etag": etag}
            found[entry.name] = Asset(content, headers, etag)
    return found
