"""The routes of accounts, tokens and limits, and what a token reaches.

All under `/toque/v1/`, and of Cloudflare's API those that its tools ask before anything else. Same
envelope, same errors, same admission as the routes of workflows; never on the hot path.
"""

from __future__ import annotations

import msgspec

from . import requests, shapes
from .auth import ADMIN, READ
from .dispatch_http import Request, Route
from .service import ControlPlane

_TOQUE = ("toque", "v1")

ADMIN_ROUTES = (
    Route("GET", (*_TOQUE, "whoami"), "whoami", READ),
    Route("GET", (*_TOQUE, "shards"), "shards", ADMIN, operator=True),
)


class Whoami(msgspec.Struct, frozen=True):
    """What a token stands for."""

    account: str
    scope: str
    token_id: str
    name: str


class AdminRoutes:
    """The endpoints of the table.

    Args:
        plane: the operations.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def _whoami(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        who = request.principal
        return shapes.answer(Whoami(who.account, who.scope, who.token_id, who.name))

    async def _shards(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        return msgspec.json.encode(await self._plane.statistics())
