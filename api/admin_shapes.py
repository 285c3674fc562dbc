"""What the routes of accounts and tokens take and give.

A token's text is in the answer that makes it, and in no other.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..gatekeeper.messages import AccountInfo, LimitsChange, TokenRecord
from ..gatekeeper.planes import Plane
from ..runtime import limits
from ..runtime.codec import Whole
from .account_limits import AccountLimits, WorkflowLimits
from .accounts import NewToken
from .auth import Principal
from .requests import kept_ms
from .shapes import iso


class Whoami(msgspec.Struct, frozen=True):
    """What a token stands for."""

    account: str
    scope: str
    token_id: str
    name: str


class AccountBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new account; an id that is left out is made. `control_plane`: where it begins."""

    id: str | None = None
    name: str | None = None
    control_plane: Literal["v1", "v2"] = "v2"


class AccountShape(msgspec.Struct, frozen=True):
    """An account. `created_on` is null if it was never registered.

    `control_plane`: `v1`, `v2`, or `moving` from one to the other; null: that can't be told just
    now.
    """

    id: str
    name: str
    created_on: str | None
    control_plane: str | None


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new token. `expires_in`: milliseconds, or `"30 days"`; left out: it does not expire."""

    name: str
    scope: str
    expires_in: Whole | str | None = None


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


Unset = msgspec.UnsetType
AUTO = "auto"


class AccountLimitsBody(msgspec.Struct, forbid_unknown_fields=True):
    """A change of an account's limits. Null: the default again. Retention as in a create."""

    running_max: Whole | Unset | None = msgspec.UNSET
    creates_per_second: Whole | Unset | None = msgspec.UNSET
    success_retention: Whole | str | Unset | None = msgspec.UNSET
    error_retention: Whole | str | Unset | None = msgspec.UNSET


class WorkflowLimitsBody(AccountLimitsBody, forbid_unknown_fields=True):
    """A change of a workflow's limits. `running_max` 0: only the account's limit holds.

    `souschefs` follows the load if it is "auto" or null.
    """

    weight: Whole | Unset | None = msgspec.UNSET
    souschefs: Whole | Literal["auto"] | Unset | None = msgspec.UNSET
    steps: Whole | Unset | None = msgspec.UNSET
    queued_max: Whole | Unset | None = msgspec.UNSET


class AccountLimitsShape(msgspec.Struct, frozen=True):
    """An account's limits. Retention is in milliseconds; null: the server's default."""

    running_max: int
    creates_per_second: int
    success_retention: int | None
    error_retention: int | None
    generation: int


class WorkflowLimitsShape(msgspec.Struct, frozen=True):
    """A workflow's limits. Null: as its account, its code or the server has it.

    `souschefs` is how many there are now; `souschefs_auto`: the number follows the load.
    """

    running_max: int
    weight: int
    creates_per_second: int
    souschefs: int
    steps: int | None
    success_retention: int | None
    error_retention: int | None
    queued_max: int
    souschefs_auto: bool


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


def account_shape(account: AccountInfo, plane: Plane | None) -> AccountShape:
    """An account, and the control plane that it is on."""
    created = iso(account.created_ms) if account.created_ms else None
    return AccountShape(account.id, account.name, created, plane)


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


def limits_change(body: AccountLimitsBody) -> LimitsChange:
    """The change that a body asks for."""
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    for name in ("success_retention", "error_retention"):
        value = given.pop(name)
        given[f"{name}_ms"] = value if value is msgspec.UNSET else kept_ms(value, name)
    if given.get("souschefs") == AUTO:
        given["souschefs"] = None
    return LimitsChange(**given)


def account_limits(found: AccountLimits) -> AccountLimitsShape:
    """An account's limits."""
    return AccountLimitsShape(
        found.running_max,
        found.creates_per_second,
        found.settings.success_retention_ms,
        found.settings.error_retention_ms,
        found.generation,
    )


def workflow_limits(found: WorkflowLimits) -> WorkflowLimitsShape:
    """A workflow's limits."""
    return WorkflowLimitsShape(
        found.record.running_max,
        found.record.weight,
        found.creates_per_second,
        found.record.souschefs,
        found.settings.steps,
        found.settings.success_retention_ms,
        found.settings.error_retention_ms,
        found.settings.queued_max or limits.QUEUED_PER_WORKFLOW_MAX,
        found.record.souschefs_auto,
    )


def cloudflare_account(account: AccountInfo) -> CloudflareAccount:
    """An account in Cloudflare's shape."""
    created = iso(account.created_ms) if account.created_ms else None
    return CloudflareAccount(account.id, account.name, created_on=created)


def membership(who: Principal, account: AccountInfo) -> Membership:
    """A token's membership of an account, in Cloudflare's shape."""
    roles = ["Administrator" if who.scope == "admin" else who.scope]
    return Membership(account.id, "accepted", cloudflare_account(account), roles)
