"""Who may do what: principals, scopes, and how a token becomes a principal.

A `Principal` is what a token stands for: one account (or `*`, the operator: every account) and a
scope. Each route needs one scope; a scope holds those before it. An account that a token does not
reach is refused alike whether it exists or not. Tokens are kept and compared as SHA-256 digests, in
constant time.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from ..gatekeeper import identity as registry
from ..gatekeeper.messages import TokenRecord
from ..gatekeeper.refusals import TooManyFailures
from ..runtime.clock import Clock
from ..runtime.errors import Forbidden, Unauthorized
from .accounts import no_account, token_id_of
from .failures import Failures
from .identity_cache import IdentityCache

SCOPES = registry.SCOPES
"""Each holds those before it."""
READ, WRITE, ADMIN = SCOPES
OPERATOR = registry.OPERATOR
"""The account of tokens that reach every account."""
_KEPT_MAX = 1_024
_NOBODYS = bytes(32)
"""What the digest of a token that is not there is compared with, so that it takes as long."""


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


class _Admitted(NamedTuple):
    """What is known of a header. `snapshot`: the registry's tokens that say so; None: our own."""

    principal: Principal
    snapshot: Mapping[str, TokenRecord] | None = None
    expires_ms: int = 0


class Admission:
    """Turns an `Authorization` header into a principal; one for all tables of routes.

    Args:
        tokens: those of this process; they are looked at first.
        identity: what is known of the registry's; None: there is none.
        clock: for expiry.
        failures: slows those who present no valid token.
    """

    def __init__(
        self,
        tokens: TokenBook,
        identity: IdentityCache | None,
        clock: Clock,
        failures: Failures | None = None,
    ) -> None:
        self._tokens = tokens
        self._identity = identity
        self._clock = clock
        self._failures = Failures() if failures is None else failures
        self._kept: dict[bytes, _Admitted] = {}

    def _known(self, authorization: bytes | None) -> Principal | None:
        """Who asks, if it was found out before and holds still.

        Headers are looked up by their SHA-256, of which nobody can choose a part.
        """
        if authorization is None:
            return None
        kept = self._kept.get(sha256(authorization).digest())
        if kept is None:
            return None
        if kept.snapshot is not None and kept.snapshot is not self._snapshot():
            return None  # what is known may have changed
        if kept.expires_ms and self._clock.now_ms() >= kept.expires_ms:
            return None
        return kept.principal

    def _snapshot(self) -> Mapping[str, TokenRecord] | None:
        """The tokens of the registry if they need no look; the same one until some have changed."""
        if self._identity is None:
            return None
        return self._identity.fresh_tokens(asyncio.get_running_loop().time())

    def _keep(self, authorization: bytes | None, found: _Admitted) -> Principal:
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[sha256(authorization or b"").digest()] = found
        return found.principal

    async def principal(self, authorization: bytes | None, client: str) -> Principal:
        """Who asks.

        Args:
            authorization: the header.
            client: the address that the request came from.

        Raises:
            Unauthorized: no valid token.
            TooManyFailures: so, and one time too many.
        """
        known = self._known(authorization)
        if known is not None:
            return known
        try:
            token = bearer(authorization)
            digest = sha256(token).digest()
            here = self._tokens.find(digest)
            if here is not None:
                return self._keep(authorization, _Admitted(here))
            slowed = self._failures.is_slowed(client, asyncio.get_running_loop().time())
            record = await self._registered(token, digest, patient=not slowed)
        except Unauthorized:
            wait_ms = self._failures.note(client, asyncio.get_running_loop().time())
            if wait_ms is None:
                raise
            raise TooManyFailures(
                "too many requests without a valid token came from this address; wait.",
                {"retry_after_ms": wait_ms},
            ) from None
        principal = Principal(record.account, record.scope, record.id, record.name)
        snapshot = self._snapshot()
        if snapshot is not None and snapshot.get(record.id) is record:
            self._keep(authorization, _Admitted(principal, snapshot, record.expires_ms))
        return principal

    async def check_exists(self, account: str) -> None:
        """Refuse an account that nobody made. Only operators can name one: tokens belong to some.

        Raises:
            AccountNotFound
            SystemFault: it is not known here, and the registry can't be asked.
        """
        if self._identity is not None and not await self._identity.has_account(account):
            raise no_account(account)

    async def check_still(self, authorization: bytes | None) -> None:
        """Check a request again that was admitted and goes on for long.

        A token that has ceased to be valid meanwhile is no failed attempt.

        Raises:
            Unauthorized: the token was revoked, or has expired.
        """
        token = bearer(authorization)
        digest = sha256(token).digest()
        if self._tokens.find(digest) is None:
            await self._registered(token, digest, patient=True)

    async def _registered(self, token: bytes, digest: bytes, *, patient: bool) -> TokenRecord:
        token_id = token_id_of(token)
        found = None
        if token_id is not None and self._identity is not None:
            found = await self._identity.token(token_id, patient=patient)
        known = _NOBODYS if found is None else found.digest
        if not hmac.compare_digest(known, digest) or found is None:
            raise Unauthorized("the token is not known; check TOQUE_TOKEN.")
        if found.expires_ms and self._clock.now_ms() >= found.expires_ms:
            raise Unauthorized("the token has expired; have a new one made.")
        return found


def bearer(authorization: bytes | None) -> bytes:
    """The token of an `Authorization` header, or `Unauthorized`."""
    if authorization is None:
        raise Unauthorized("no token: send 'Authorization: Bearer <token>'.")
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthorized("the token is no bearer token: send 'Authorization: Bearer <token>'.")
    return token.strip()
