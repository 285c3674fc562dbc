"""Who may do what: principals, scopes, and the tokens that this process was given.

A `Principal` is what a token stands for: one account (or `*`, the operator: every account) and a
scope. Each route needs one scope. An account that a token does not reach is refused alike
whether it exists or not. Tokens are kept and compared as SHA-256 digests, in constant time.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from ..runtime.errors import Forbidden, Unauthorized

READ = "read"
WRITE = "write"
ADMIN = "admin"
SCOPES = (READ, WRITE, ADMIN)
"""Each scope holds those before it."""
OPERATOR = "*"
"""The account of tokens that reach every account."""


class Principal(NamedTuple):
    """Who asks.

    Attributes:
        account: whose data it reaches; `*`: everybody's.
        scope: `read`, `write` or `admin`.
        token_id, name: of its token.
    """

    account: str
    scope: str = ADMIN
    token_id: str = "local"
    name: str = ""

    @property
    def is_operator(self) -> bool:
        """Whether it reaches every account."""
        return self.account == OPERATOR

    def check_account(self, account: str) -> None:
        """`Forbidden` unless it reaches that account."""
        if self.account not in (account, OPERATOR):
            raise Forbidden("the token does not reach this account.")

    def check_scope(self, scope: str) -> None:
        """`Forbidden` unless its scope holds that one."""
        if SCOPES.index(self.scope) < SCOPES.index(scope):
            raise Forbidden(
                f"this needs a token of scope {scope!r}; this one's is {self.scope!r}.",
                {"needed": scope, "scope": self.scope},
            )

    def check_operator(self) -> None:
        """`Forbidden` unless it reaches every account."""
        if not self.is_operator:
            raise Forbidden("this needs an operator's token (one of account '*').")


class TokenBook:
    """Tokens that live in this process only, as those of `toque dev` and of tests do.

    Args:
        tokens: token -> principal, or an account (then with scope `admin`).
    """

    def __init__(self, tokens: Mapping[str, str | Principal]) -> None:
        if not all(tokens):
            raise ValueError("a token may not be empty")
        self._known = [
            (sha256(token.encode()).digest(), Principal(who) if isinstance(who, str) else who)
            for token, who in tokens.items()
        ]

    def find(self, digest: bytes) -> Principal | None:
        """The principal of the token of that SHA-256 digest."""
        found = None
        for known, principal in self._known:
            if hmac.compare_digest(known, digest):
                found = principal
        return found


class Admission:
    """Turns an `Authorization` header into a principal; one for all tables of routes.

    Args:
        tokens: those of this process.
    """

    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens

    async def principal(self, authorization: bytes | None, client: str) -> Principal:
        """Who asks, or `Unauthorized`.

        Args:
            authorization: the header.
            client: the address that the request came from.
        """
        token = bearer(authorization)
        found = self._tokens.find(sha256(token).digest())
        if found is None:
            raise Unauthorized("the token is not known; check TOQUE_TOKEN.")
        return found


def bearer(authorization: bytes | None) -> bytes:
    """The token of an `Authorization` header, or `Unauthorized`."""
    if authorization is None:
        raise Unauthorized("no token: send 'Authorization: Bearer <token>'.")
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthorized("the token is no bearer token: send 'Authorization: Bearer <token>'.")
    return token.strip()
