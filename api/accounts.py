"""Operations on accounts and tokens, without transport.

A token's text is drawn here, shown once, and sent nowhere: the registry gets its digest. A
request id makes a change take effect once. A repeated request for a token can't show the first
text again, which nobody has any more; it gives the same token a new text, and the first one
stops working.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import NamedTuple

from ..gatekeeper.identity import OPERATOR, SCOPES
from ..gatekeeper.messages import ACCOUNT_KIND, AccountInfo, AccountSnapshot, TokenRecord
from ..gatekeeper.planes import PLANES, Plane
from ..gatekeeper.refusals import AccountAlreadyExists, AccountNotFound
from ..migration.messages import OldStatus
from ..runtime import limits
from ..runtime.clock import Clock
from ..runtime.entropy import Entropy
from ..runtime.errors import InvalidArgument, SystemFault
from ..runtime.ids import EntityRef, check_account_id, old_account
from .calls import Caller
from .identity_cache import IDENTITY, IdentityCache

TOKEN_PREFIX = "tq"
TOKEN_ID_CHARS = 12
_SECRET_BYTES = 32
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class NewToken(NamedTuple):
    """A token just made, and its text, which is shown this once."""

    record: TokenRecord
    text: str


class Accounts:
    """The operations.

    Args:
        caller: for calls to the registry.
        cache: what this front end knows of it.
        clock: for expiry.
        entropy: for ids and secrets.
    """

    def __init__(
        self, caller: Caller, cache: IdentityCache, clock: Clock, entropy: Entropy
    ) -> None:
        self._caller = caller
        self._clock = clock
        self._entropy = entropy
        self.cache = cache

    async def list_accounts(self) -> list[AccountInfo]:
        """All accounts, by id."""
        found = await self.cache.accounts()
        return sorted(found.values(), key=lambda account: account.id)

    async def get_account(self, account: str) -> AccountInfo:
        """An account, or `AccountNotFound`."""
        known = (await self.cache.accounts()).get(account)
        if known is None:
            raise no_account(account)
        return known

    async def plane_of(self, account: AccountInfo) -> Plane | None:
        """The control plane that an account is on; None: that can't be told just now."""
        if account.made_on == "v2":
            return "v2"
        try:
            status: OldStatus = await self._caller.call(
                OldStatus,
                self._caller.deadline(limits.READY_TIMEOUT_MS),
                old_account(account.id),
                "status",
            )
        except SystemFault:
            return None
        return next((plane for plane in PLANES if plane == status.plane), None)

    async def create_account(
        self,
        account: str | None = None,
        name: str | None = None,
        *,
        plane: Plane = "v2",
        request_id: str | None = None,
    ) -> AccountInfo:
        """Make an account.

        Args:
            account: its id; None has one made.
            name: for people; the id if not given.
            plane: the control plane that it begins on: `v1` or `v2`.
            request_id: see the module's description.

        Raises:
            InvalidId, InvalidArgument, AccountAlreadyExists, TooManyAccounts
            RequestIdReused: the request id has made the account with another name or elsewhere.
        """
        request_id = request_id or self._entropy.new_id()
        if account is None:
            account = blake2b(f"account/{request_id}".encode(), digest_size=16).hexdigest()
        check_account_id(account)
        if plane != "v2":
            await self._check_unused(account)
        made: AccountInfo = await self._caller.call(
            AccountInfo,
            self._caller.deadline(),
            IDENTITY,
            "put_account",
            account,
            account if name is None else name,
            request_id,
            plane,
            changes=True,
        )
        self.cache.forget()
        await self._begin(made)
        return made

    async def ensure_account(self, account: str, plane: Plane | None = None) -> AccountInfo:
        """The account; made if it is missing, on a control plane (None: on V2).

        Raises:
            AccountAlreadyExists: it was made on another plane than is asked for.
        """
        check_account_id(account)
        if plane == "v1":
            await self._check_unused(account)
        made: AccountInfo = await self._caller.call(
            AccountInfo,
            self._caller.deadline(),
            IDENTITY,
            "ensure_account",
            account,
            plane,
            changes=True,
        )
        await self._begin(made)
        return made

    async def _check_unused(self, account: str) -> None:
        """Refuse to make an account on V1 whose name serves on V2 without having been made."""
        if account in await self.cache.accounts():
            return  # the registry says whether it can be
        deadline = self._caller.deadline()
        found: AccountSnapshot = await self._caller.call(
            AccountSnapshot, deadline, EntityRef(ACCOUNT_KIND, account), "snapshot", -1
        )
        if found.plane.plane == "v2" and found.generation:
            raise AccountAlreadyExists(
                f"account {account!r} has workflows on control plane v2; only a new account can be "
                "made on v1. Take another id.",
                {"account": account},
            )

    async def _begin(self, made: AccountInfo) -> None:
        """Return when an account that was made on V1 serves there, or has served.

        The registry sees to it too, should this front end not get that far.
        """
        if made.made_on == "v2":
            return
        for ref, method, args in (
            (old_account(made.id), "begin", ()),
            (EntityRef(ACCOUNT_KIND, made.id), "set_plane", ("v1",)),
        ):
            await self._caller.call(None, self._caller.deadline(), ref, method, *args, changes=True)

    async def list_tokens(self, account: str) -> list[TokenRecord]:
        """The tokens of an account (`*`: operators'), oldest first."""
        found = [token for token in await self.cache.tokens() if token.account == account]
        return sorted(found, key=lambda token: (token.created_ms, token.id))

    async def create_token(
        self,
        account: str,
        name: str,
        scope: str,
        *,
        expires_in_ms: int | None = None,
        request_id: str | None = None,
    ) -> NewToken:
        """Make a token of an account (`*`: an operator's).

        Raises:
            InvalidArgument, AccountNotFound, TooManyTokens
            RequestIdReused: the request id has made a token of other name, scope or life.
        """
        if scope not in SCOPES:
            raise InvalidArgument(f"scope is one of {', '.join(SCOPES)}, not {scope!r:.40}.")
        if account != OPERATOR:
            check_account_id(account)
        least, most = limits.TOKEN_LIFE_MIN_MS, limits.TOKEN_LIFE_MAX_MS
        if expires_in_ms is not None and not least <= expires_in_ms <= most:
            raise InvalidArgument(
                f"expires_in is {least // 1000} s to {most // limits.DAY_MS} days."
            )
        token_id = _id_of(f"{account}/{request_id or self._entropy.new_id()}")
        text = f"{TOKEN_PREFIX}_{token_id}_{self._secret()}"
        record: TokenRecord = await self._caller.call(
            TokenRecord,
            self._caller.deadline(),
            IDENTITY,
            "put_token",
            token_id,
            account,
            name,
            scope,
            sha256(text.encode()).digest(),
            expires_in_ms or 0,
            changes=True,
        )
        self.cache.forget()
        return NewToken(record, text)

    async def revoke_token(self, account: str, token_id: str) -> None:
        """Revoke a token: refused here at once, and everywhere within a second.

        Raises:
            TokenNotFound
        """
        await self._caller.call(
            None,
            self._caller.deadline(),
            IDENTITY,
            "revoke_token",
            account,
            token_id,
            changes=True,
        )
        self.cache.forget()

    def _secret(self) -> str:
        """32 random bytes as base-62 digits."""
        value = int(self._entropy.new_id() + self._entropy.new_id(), 16)
        return _base62(value, _chars_for(_SECRET_BYTES))


def no_account(account: str) -> AccountNotFound:
    """What an operator is told of an account that nobody made."""
    return AccountNotFound(
        f"there is no account {account!r:.80}. `toque accounts list` shows those there are, and "
        "`toque accounts create` makes one.",
        {"account": account},
    )


def token_id_of(text: bytes) -> str | None:
    """The id within a token's text; None if it is none of the registry's."""
    parts = text.split(b"_")
    if len(parts) != 3 or parts[0] != TOKEN_PREFIX.encode() or len(parts[1]) != TOKEN_ID_CHARS:
        return None
    return parts[1].decode("latin-1")


def _id_of(seed: str) -> str:
    digest = int.from_bytes(blake2b(seed.encode(), digest_size=16).digest(), "big")
    return _base62(digest % 62**TOKEN_ID_CHARS, TOKEN_ID_CHARS)


def _chars_for(size: int) -> int:
    """How many base-62 digits hold `size` bytes."""
    chars = 0
    while 62**chars < 256**size:
        chars += 1
    return chars


def _base62(value: int, chars: int) -> str:
    digits = []
    for _ in range(chars):
        value, rest = divmod(value, 62)
        digits.append(_DIGITS[rest])
    return "".join(reversed(digits))
