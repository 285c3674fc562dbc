"""What the routes of accounts and tokens take and give."""

from __future__ import annotations

from typing import Any

import msgspec

from ..gatekeeper.messages import AccountInfo, TokenRecord
from .accounts import NewToken
from .auth import Principal
from .shapes import iso


class Whoami(msgspec.Struct, frozen=True):
    """What a token stands for."""

    account: str
    scope: str
    token_id: str
    name: str


class AccountBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new account; an id that is left out is made."""

    id: str | None = None
    name: str | None = None


class AccountShape(msgspec.Struct, frozen=True):
    """An account. `created_on` is null if it was never registered."""

    id: str
    name: str
    created_on: str | None


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new token. `expires_in`: milliseconds, or `"30 days"`; left out: it does not expire."""

    name: str
    scope: str
    expires_in: int | str | None = None


class TokenShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token; its text, `token`, only in the answer that makes it."""

    id: str
    name: str
    account: str
    scope: str
    created_on: str
    expires_on: str | None
    token: str | msgspec.UnsetType = msgspec.UNSET


class TokenRevoked(msgspec.Struct, frozen=True):
    """The token that was revoked."""

    id: str


class CloudflareAccount(msgspec.Struct, frozen=True):
    """An account as Cloudflare's tools expect it."""

    id: str
    name: str
    type: str = "standard"
    settings: dict[str, Any] = {}
    created_on: str | None = None


class Membership(msgspec.Struct, frozen=True):
    """That a token belongs to an account."""

    id: str
    status: str
    account: CloudflareAccount
    roles: list[str]
    permissions: dict[str, Any] = {}


class TokenVerified(msgspec.Struct, frozen=True):
    """That a token is valid."""

    id: str
    status: str = "active"


def whoami(who: Principal) -> Whoami:
    """What a token stands for."""
    return Whoami(who.account, who.scope, who.token_id, who.name)


def account_shape(account: AccountInfo) -> AccountShape:
    """An account."""
    created = iso(account.created_ms) if account.created_ms else None
    return AccountShape(account.id, account.name, created)


def token_shape(token: TokenRecord | NewToken) -> TokenShape:
    """A token, with its text if it is new."""
    record, text = token if isinstance(token, NewToken) else (token, msgspec.UNSET)
    expires = iso(record.expires_ms) if record.expires_ms else None
    return TokenShape(
        record.id,
        record.name,
        record.account,
        record.scope,
        iso(record.created_ms),
        expires,
        text,
    )


def cloudflare_account(account: AccountInfo) -> CloudflareAccount:
    """An account in Cloudflare's shape."""
    created = iso(account.created_ms) if account.created_ms else None
    return CloudflareAccount(account.id, account.name, created_on=created)


def membership(who: Principal, account: AccountInfo) -> Membership:
    """A token's membership of an account, in Cloudflare's shape."""
    roles = ["Administrator" if who.scope == "admin" else who.scope]
    return Membership(account.id, "accepted", cloudflare_account(account), roles)
