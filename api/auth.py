"""Who may do what: bearer tokens and the account that each reaches.

Tokens are kept and compared as SHA-256 digests, in constant time. An account that a token does
not reach is refused alike whether it exists or not.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from ..runtime.errors import Forbidden, Unauthorized


class TokenBook:
    """The tokens that the server knows.

    Args:
        tokens: token -> account.
    """

    def __init__(self, tokens: dict[str, str]) -> None:
        if not all(tokens):
            raise ValueError("a token may not be empty")
        self._digests = [
            (sha256(token.encode()).digest(), account.encode()) for token, account in tokens.items()
        ]

    def account_of(self, authorization: bytes | None) -> bytes:
        """The account of a bearer token (an `Authorization` header), or `Unauthorized`."""
        if authorization is None:
            raise Unauthorized("no token: send 'Authorization: Bearer <token>'.")
        scheme, _, token = authorization.partition(b" ")
        found = None
        if scheme.lower() == b"bearer":
            digest = sha256(token.strip()).digest()
            for known, account in self._digests:
                if hmac.compare_digest(known, digest):
                    found = account
        if found is None:
            raise Unauthorized("the token is not known; check TOQUE_TOKEN.")
        return found

    @staticmethod
    def check_account(reached: bytes, wanted: bytes) -> None:
        """`Forbidden` unless the token's account is the one that the path names."""
        if reached != wanted:
            raise Forbidden("the token does not reach this account.")
