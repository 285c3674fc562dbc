"""Identity: the registry of accounts and tokens, one for the whole server.

Of a token only the SHA-256 digest is here: whoever makes it draws its text, keeps it from
everybody but its owner, and sends id and digest. Each change raises one generation, by which
front ends keep a snapshot. What is revoked stays for a while as a mark, so that a repeated
revocation finds its first one done; then it goes, as what has long expired does.
"""

from __future__ import annotations

import msgspec

from ..runtime import limits
from ..runtime.entity import Context, DurableObject
from ..runtime.errors import InvalidArgument, RequestIdReused
from ..runtime.ids import EntityRef, check_account_id, old_account
from ..runtime.tables import Table, every_row
from .messages import ACCOUNT_KIND, IDENTITY_KIND, AccountInfo, IdentitySnapshot, TokenRecord
from .planes import Plane
from .refusals import (
    AccountAlreadyExists,
    AccountNotFound,
    TokenNotFound,
    TooManyAccounts,
    TooManyTokens,
)

IDENTITY = Table("identity", (("entity", "TEXT"), ("generation", "INTEGER")), key_size=1)
ACCOUNT_NAMES = Table(
    "identity_accounts",
    (
        ("entity", "TEXT"),
        ("id", "TEXT"),
        ("name", "TEXT"),
        ("created_ms", "INTEGER"),
        ("request_id", "TEXT"),
    ),
    key_size=2,
)
MADE_ON_V1 = Table("identity_v1_accounts", (("entity", "TEXT"), ("id", "TEXT")), key_size=2)
"""The accounts that were made on V1; all others were made on V2."""
TOKENS = Table(
    "identity_tokens",
    (
        ("entity", "TEXT"),
        ("id", "TEXT"),
        ("account", "TEXT"),
        ("name", "TEXT"),
        ("scope", "TEXT"),
        ("digest", "BLOB"),
        ("created_ms", "INTEGER"),
        ("expires_ms", "INTEGER"),
        ("revoked_ms", "INTEGER"),
    ),
    key_size=2,
)
SCOPES = ("read", "write", "admin")
OPERATOR = "*"
_DIGEST_BYTES = 32


class Identity(DurableObject):
    """The registry; its key is `root`."""

    KIND = IDENTITY_KIND
    TABLES = (IDENTITY, ACCOUNT_NAMES, MADE_ON_V1, TOKENS)

    def __init__(self, ctx: Context, env: None) -> None:
        super().__init__(ctx, env)
        row = ctx.get(IDENTITY, (ctx.ref.key,))
        self._generation: int = row[1] if row else 0
        own = (ctx.ref.key,)
        on_v1 = {row[1] for row in every_row(ctx, MADE_ON_V1, own)}
        self._accounts = {
            id: AccountInfo(id, name, created_ms, request_id, "v1" if id in on_v1 else "v2")
            for _, id, name, created_ms, request_id in every_row(ctx, ACCOUNT_NAMES, own)
        }
        self._tokens = {row[1]: TokenRecord(*row[1:]) for row in every_row(ctx, TOKENS, own)}

    def snapshot(self, known_generation: int) -> IdentitySnapshot:
        """All accounts and all tokens that are not revoked; neither if nothing is newer."""
        if known_generation == self._generation:
            return IdentitySnapshot(self._generation, None, None)
        valid = [token for token in self._tokens.values() if not token.revoked_ms]
        return IdentitySnapshot(self._generation, list(self._accounts.values()), valid)

    def put_account(
        self, account: str, name: str, request_id: str, plane: Plane = "v2"
    ) -> AccountInfo:
        """Make an account on a control plane; the same request again gets the first answer.

        Of one on V1 the entities of both planes are told, in the same commit.

        Raises:
            InvalidId, InvalidArgument, AccountAlreadyExists, TooManyAccounts
            RequestIdReused: that id has made the account with another name, or elsewhere.
        """
        check_account_id(account)
        _check_name(name)
        known = self._accounts.get(account)
        if known is not None:
            if known.request_id == request_id and (known.name, known.made_on) == (name, plane):
                return known
            if known.request_id == request_id != "":
                raise RequestIdReused(
                    f"the Idempotency-Key has made account {account!r} with another name or on "
                    "another control plane already, and nothing was done; another account takes "
                    "another key."
                )
            raise _exists(known, plane)
        if len(self._accounts) >= limits.ACCOUNTS_MAX:
            raise TooManyAccounts(
                f"there are {limits.ACCOUNTS_MAX} accounts; no more are taken.",
                {"max": limits.ACCOUNTS_MAX},
            )
        made = AccountInfo(account, name, self.ctx.clock.now_ms(), request_id, plane)
        self.ctx.put(ACCOUNT_NAMES, (self.ctx.ref.key, account, name, made.created_ms, request_id))
        if plane != "v2":
            self.ctx.put(MADE_ON_V1, (self.ctx.ref.key, account))
            self.ctx.tell(old_account(account), "begin")
            self.ctx.tell(EntityRef(ACCOUNT_KIND, account), "set_plane", plane)
        self._accounts[account] = made
        self._changed()
        return made

    def ensure_account(self, account: str, plane: Plane | None = None) -> AccountInfo:
        """The account; made if it is missing, on a control plane (None: on V2).

        Raises:
            AccountAlreadyExists: it was made on another plane than is asked for.
        """
        known = self._accounts.get(account)
        if known is None:
            return self.put_account(account, account, "", plane or "v2")
        if plane is not None and known.made_on != plane:
            raise _exists(known, plane)
        return known

    def put_token(
        self, token_id: str, account: str, name: str, scope: str, digest: bytes, life_ms: int
    ) -> TokenRecord:
        """Note a token. The same again changes nothing; with another digest it gets that one.

        `life_ms`: from when it was made until it expires; 0: it does not.

        Raises:
            InvalidArgument, AccountNotFound, TooManyTokens
            RequestIdReused: that id is another token's.
        """
        _check_name(name)
        if scope not in SCOPES or len(digest) != _DIGEST_BYTES or not token_id:
            raise InvalidArgument(f"a token's scope is one of {', '.join(SCOPES)}.")
        if account != OPERATOR and account not in self._accounts:
            raise AccountNotFound(f"there is no account {account!r:.80}.")
        now_ms = self.ctx.clock.now_ms()
        known = self._tokens.get(token_id)
        if known is None or known.revoked_ms:
            self._sweep(now_ms)
            self._check_room(account)
            known = None
        elif (known.account, known.name, known.scope, _life_ms(known)) != (
            account, name, scope, life_ms,
        ):  # fmt: skip
            raise RequestIdReused(
                "the Idempotency-Key has made a token of another name, scope or life already, and "
                "nothing was done; another token takes another key."
            )
        elif known.digest == digest:
            return known
        created_ms = now_ms if known is None else known.created_ms
        expires_ms = created_ms + life_ms if life_ms else 0
        record = TokenRecord(token_id, account, name, scope, digest, created_ms, expires_ms, 0)
        self._write(record)
        return record

    def revoke_token(self, account: str, token_id: str) -> None:
        """Revoke a token of an account.

        Raises:
            TokenNotFound
        """
        known = self._tokens.get(token_id)
        if known is None or known.account != account:
            raise TokenNotFound(
                f"account {account!r:.80} has no token {token_id!r:.40}.", {"id": token_id[:40]}
            )
        if not known.revoked_ms:
            now_ms = self.ctx.clock.now_ms()
            self._sweep(now_ms)
            self._write(msgspec.structs.replace(known, revoked_ms=now_ms))

    # --- inside -----------------------------------------------------------------------------

    def _write(self, record: TokenRecord) -> None:
        values = [getattr(record, name) for name in record.__struct_fields__]
        self.ctx.put(TOKENS, (self.ctx.ref.key, *values))
        self._tokens[record.id] = record
        self._changed()

    def _changed(self) -> None:
        self.ctx.put(IDENTITY, (self.ctx.ref.key, self._generation + 1))
        self._generation += 1

    def _check_room(self, account: str) -> None:
        mine = sum(
            token.account == account and not token.revoked_ms for token in self._tokens.values()
        )
        if mine >= limits.TOKENS_PER_ACCOUNT_MAX or len(self._tokens) >= limits.TOKENS_MAX:
            raise TooManyTokens(
                f"account {account!r} has {mine} of {limits.TOKENS_PER_ACCOUNT_MAX} tokens, the "
                f"server {len(self._tokens)} of {limits.TOKENS_MAX}; revoke some.",
                {"account": mine, "all": len(self._tokens)},
            )

    def _sweep(self, now_ms: int) -> None:
        """Forget what was revoked, or has expired, long ago."""
        for token in list(self._tokens.values()):
            revoked = token.revoked_ms and now_ms - token.revoked_ms > limits.TOKEN_REVOKED_KEPT_MS
            expired = token.expires_ms and now_ms - token.expires_ms > limits.TOKEN_EXPIRED_KEPT_MS
            if revoked or expired:
                self.ctx.delete(TOKENS, (self.ctx.ref.key, token.id))
                del self._tokens[token.id]


def _life_ms(token: TokenRecord) -> int:
    return token.expires_ms - token.created_ms if token.expires_ms else 0


def _exists(known: AccountInfo, plane: Plane) -> AccountAlreadyExists:
    told = f"account {known.id!r} exists."
    if known.made_on != plane:
        told = (
            f"account {known.id!r} exists, made on control plane {known.made_on}; only a new "
            f"account can be made on {plane}."
        )
    return AccountAlreadyExists(told, {"account": known.id})


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= limits.LABEL_CHARS_MAX or not name.isprintable():
        raise InvalidArgument(
            f"a name is 1 to {limits.LABEL_CHARS_MAX} printable characters, not {name!r:.80}."
        )
