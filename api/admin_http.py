"""The routes of accounts, tokens and limits, and what a token reaches.

All under `/toque/v1/`, and of Cloudflare's API those that its tools ask before anything else. Same
envelope, same errors, same admission as the routes of workflows; never on the hot path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from ..engines.durations import json_duration_ms
from ..gatekeeper.messages import AccountInfo
from ..gatekeeper.refusals import AccountNotFound
from ..runtime import limits
from . import admin_shapes, requests, shapes
from .auth import ADMIN, READ, Principal
from .dispatch_http import ACCOUNT, Request, Route
from .doctor import judge_running, told
from .kept import Kept
from .overview import overview_of
from .service import ControlPlane, check_request_id

T = TypeVar("T")
_TOQUE = ("toque", "v1")
_ONE = (*_TOQUE, "accounts", ACCOUNT)
_TOKENS = (*_ONE, "tokens")
_LIMITS = (*_ONE, "limits")
_WORKFLOW_LIMITS = (*_ONE, "workflows", "{}", "limits")
_CLOUDFLARE = ("client", "v4")

ADMIN_ROUTES = (
    Route("GET", (*_TOQUE, "whoami"), "whoami", READ),
    Route("GET", (*_TOQUE, "shards"), "shards", READ, operator=True),
    Route("GET", (*_TOQUE, "doctor"), "doctor", READ, operator=True),
    Route("GET", (*_TOQUE, "accounts"), "list_accounts", READ, operator=True),
    Route("POST", (*_TOQUE, "accounts"), "create_account", ADMIN, operator=True),
    Route("GET", _ONE, "get_account", READ),
    Route("GET", (*_ONE, "overview"), "overview", READ),
    Route("GET", _TOKENS, "list_tokens", ADMIN),
    Route("POST", _TOKENS, "create_token", ADMIN),
    Route("DELETE", (*_TOKENS, "{}"), "revoke_token", ADMIN),
    Route("GET", _LIMITS, "get_limits", READ),
    Route("PATCH", _LIMITS, "change_limits", ADMIN),
    Route("GET", _WORKFLOW_LIMITS, "get_workflow_limits", READ),
    Route("PATCH", _WORKFLOW_LIMITS, "change_workflow_limits", ADMIN),
    Route("GET", (*_CLOUDFLARE, "accounts"), "cloudflare_accounts", READ),
    Route("GET", (*_CLOUDFLARE, "accounts", ACCOUNT), "cloudflare_account", READ),
    Route("GET", (*_CLOUDFLARE, "memberships"), "memberships", READ),
    Route("GET", (*_CLOUDFLARE, "user", "tokens", "verify"), "verify_token", READ),
)

_account_body = msgspec.json.Decoder(admin_shapes.AccountBody)
_account_limits = msgspec.json.Decoder(admin_shapes.AccountLimitsBody)
_workflow_limits = msgspec.json.Decoder(admin_shapes.WorkflowLimitsBody)
_token_body = msgspec.json.Decoder(admin_shapes.TokenBody)


class AdminRoutes:
    """The endpoints of the table.

    Args:
        plane: the operations.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._accounts = plane.accounts
        self._figures = Kept(plane.figures, limits.METRICS_KEPT_MS)
        self._parts = Kept(plane.ready, limits.READY_KEPT_MS)

    # --- what a token reaches ---

    async def _whoami(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        return shapes.answer(admin_shapes.whoami(request.principal))

    async def _shards(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        return shapes.answer(await self._plane.statistics())

    async def _doctor(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        found = judge_running(await self._parts.get(), await self._plane.statistics())
        return shapes.answer(told(found, fixed=False))

    async def _verify_token(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        return shapes.answer(admin_shapes.TokenVerified(request.principal.token_id))

    async def _cloudflare_accounts(self, request: Request) -> bytes:
        async def shape(account: AccountInfo) -> admin_shapes.CloudflareAccount:
            return admin_shapes.cloudflare_account(account)

        return await self._reached_page(request, shape)

    async def _memberships(self, request: Request) -> bytes:
        async def shape(account: AccountInfo) -> admin_shapes.Membership:
            return admin_shapes.membership(request.principal, account)

        return await self._reached_page(request, shape)

    async def _cloudflare_account(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        found = await self._named(request)
        return shapes.answer(admin_shapes.cloudflare_account(found))

    # --- accounts ---

    async def _list_accounts(self, request: Request) -> bytes:
        return await self._reached_page(request, self._shape_of)

    async def _shape_of(self, account: AccountInfo) -> admin_shapes.AccountShape:
        return admin_shapes.account_shape(account, await self._accounts.plane_of(account))

    async def _create_account(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        known = admin_shapes.AccountBody.__struct_fields__
        body = requests.decode(_account_body, await request.body() or b"{}", known)
        made = await self._accounts.create_account(
            body.id, body.name, plane=body.control_plane, request_id=_key_of(request)
        )
        return shapes.answer(await self._shape_of(made))

    async def _get_account(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        return shapes.answer(await self._shape_of(await self._named(request)))

    async def _overview(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        account = await self._named(request)
        figures, plane, found = await asyncio.gather(
            self._figures.get(),
            self._accounts.plane_of(account),
            self._plane.limits.of_account(account.id),
        )
        asked = self._plane.placement.names()
        now = shapes.iso(self._plane.clock.now_ms())
        limit = found.running_max
        return shapes.answer(overview_of(account.id, plane, limit, figures, asked, now))

    async def _named(self, request: Request) -> AccountInfo:
        """The account that the path names."""
        try:
            return await self._accounts.get_account(request.account)
        except AccountNotFound:
            if request.principal.is_operator:
                raise
            return AccountInfo(request.account, request.account, 0)

    async def _reached(self, who: Principal) -> list[AccountInfo]:
        """All accounts that a token reaches, by id."""
        known = await self._accounts.list_accounts()
        if who.is_operator:
            return known
        mine = [account for account in known if account.id == who.account]
        return mine or [AccountInfo(who.account, who.account, 0)]

    async def _reached_page(
        self, request: Request, shape: Callable[[AccountInfo], Awaitable[Any]]
    ) -> bytes:
        query = requests.parse_query(request.query, ("page", "per_page", "direction", "name"))
        page, per_page = requests.parse_page(query)
        found = await self._reached(request.principal)
        if "name" in query:
            found = [account for account in found if account.name == query["name"]]
        if requests.parse_choice(query, "direction", ("asc", "desc")) == "desc":
            found.reverse()
        shown = found[(page - 1) * per_page : page * per_page]
        info = shapes.list_info(len(shown), per_page, len(found), page, None)
        return shapes.answer_list(await asyncio.gather(*map(shape, shown)), info)

    # --- tokens ---

    async def _list_tokens(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("page", "per_page"))
        page, per_page = requests.parse_page(query)
        found = await self._accounts.list_tokens(request.account)
        shown = found[(page - 1) * per_page : page * per_page]
        info = shapes.list_info(len(shown), per_page, len(found), page, None)
        return shapes.answer_list([admin_shapes.token_shape(token) for token in shown], info)

    async def _create_token(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        known = admin_shapes.TokenBody.__struct_fields__
        body = requests.decode(_token_body, await request.body(), known)
        life = body.expires_in
        made = await self._accounts.create_token(
            request.account,
            body.name,
            body.scope,
            expires_in_ms=None if life is None else _life_ms(life),
            request_id=_key_of(request),
        )
        return shapes.answer(admin_shapes.token_shape(made))

    async def _revoke_token(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        (token_id,) = request.words
        await self._accounts.revoke_token(request.account, token_id[: limits.ENTITY_KEY_CHARS_MAX])
        return shapes.answer(admin_shapes.TokenRevoked(token_id))

    # --- limits ---

    async def _get_limits(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        await self._named(request)
        found = await self._plane.limits.of_account(request.account)
        return shapes.answer(admin_shapes.account_limits(found))

    async def _change_limits(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        await self._named(request)
        known = admin_shapes.AccountLimitsBody.__struct_fields__
        body = requests.decode(_account_limits, await request.body(), known)
        change = admin_shapes.limits_change(body)
        found = await self._plane.limits.of_account(request.account, change)
        return shapes.answer(admin_shapes.account_limits(found))

    async def _get_workflow_limits(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        found = await self._plane.limits.of_workflow(request.account, request.words[0])
        return shapes.answer(admin_shapes.workflow_limits(found))

    async def _change_workflow_limits(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        known = admin_shapes.WorkflowLimitsBody.__struct_fields__
        body = requests.decode(_workflow_limits, await request.body(), known)
        change = admin_shapes.limits_change(body)
        found = await self._plane.limits.of_workflow(request.account, request.words[0], change)
        return shapes.answer(admin_shapes.workflow_limits(found))


def _life_ms(given: int | str) -> int:
    """How long a token is to be valid."""
    least, most = limits.TOKEN_LIFE_MIN_MS, limits.TOKEN_LIFE_MAX_MS
    return json_duration_ms(given, "expires_in", min_ms=least, max_ms=most)


def _key_of(request: Request) -> str | None:
    """The request id of a change: the caller's key, apart from other callers'."""
    if request.key is None:
        return None
    return f"{request.principal.token_id}/{check_request_id(request.key)}"
