"""The HTTP application: the REST routes, health, and the OpenAPI document.

A FastAPI application that hands everything under `/client/v4/` and `/toque/v1/` to the dispatcher
before any of its own machinery runs. Its own routes need a token too, except `/healthz` and
`/readyz`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from ..runtime import limits
from ..runtime.errors import MethodNotAllowed, RouteNotFound, ToqueError
from ..runtime.histogram import Histogram
from ..runtime.process import ProcessMeter
from .admin_http import ADMIN_ROUTES, AdminRoutes
from .auth import Admission, Principal, TokenBook
from .dashboard_http import DashboardFiles
from .deploy_http import DEPLOY_ROUTES, DeployRoutes
from .dispatch_http import Dispatcher, Receive, Scope, Send
from .errors_http import answer_of
from .failures import Failures
from .identity_cache import IDENTITY_PART
from .kept import Kept
from .metrics_http import CONTENT_TYPE, Metrics
from .migration_http import MIGRATION_ROUTES, MigrationRoutes
from .openapi import openapi_document
from .routes_http import BASE, ROUTES, Routes
from .service import ControlPlane

_PREFIXES = (b"/client/v4/", b"/toque/v1/")
_OPEN_PATHS = frozenset({"/healthz", "/readyz"})


class ControlPlaneApp(FastAPI):
    """The application.

    Attributes:
        api: the bare ASGI part.
        endpoints: those of workflows and instances; they have long waits to end.
        admission: knows who asks.
        parts: for each part of the system whether it does its work.
        draining: it ends soon, and is not ready for more.
        dashboard: the page for operators; None: it is not served.
        metrics: the figures of the system.
    """

    api: Dispatcher
    endpoints: Routes
    admission: Admission
    parts: Kept[dict[str, bool]]
    metrics: Metrics
    draining = False
    dashboard: DashboardFiles | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if not scope.get("raw_path"):
            scope["raw_path"] = scope["path"].encode()
        if scope["raw_path"].startswith(_PREFIXES):
            await self.api(scope, receive, send)
            return
        if self.dashboard is not None and self.dashboard.has(scope["path"]):
            try:
                answer = self.dashboard.answer(scope)
            except ToqueError as error:
                answer = _response(error)
            await answer(scope, receive, send)
            return
        if len(scope["path"]) > 1 and scope["path"].endswith("/"):  # the same path
            scope["path"] = scope["path"][:-1]
        if scope["path"] not in _OPEN_PATHS:
            try:
                scope["toque.principal"] = await self.principal(scope)
            except ToqueError as error:
                await _response(error)(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    async def principal(self, scope: Scope) -> Principal:
        """Who asks, or `Unauthorized`."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        client = scope.get("client")
        return await self.admission.principal(
            headers.get(b"authorization"), client[0] if client else ""
        )

    def begin_drain(self) -> None:
        """Say that this front end is not ready any more; it goes on with its work."""
        self.draining = True

    def drain(self) -> None:
        """The server ends: end long waits."""
        self.begin_drain()
        self.endpoints.drain()

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi_document(self.version)
        return self.openapi_schema


def make_app(
    plane: ControlPlane,
    *,
    tokens: TokenBook,
    version: str,
    failures: Failures | None = None,
    process: ProcessMeter | None = None,
    frames: Histogram | None = None,
    dashboard: bool = True,
) -> ControlPlaneApp:
    """The application over a control plane.

    Args:
        plane: the operations.
        tokens: tokens of this process, beside those of the registry.
        version: shown in the OpenAPI document.
        failures: slows those who present no valid token.
        process: figures of this process, for metrics.
        frames: how many calls this process's router sent in each frame, for metrics.
        dashboard: whether to serve the page for operators.
    """
    app = ControlPlaneApp(title="toque", version=version, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False  # else it sends callers where their Host header says
    app.admission = Admission(tokens, plane.accounts.cache, plane.clock, failures)
    app.endpoints, app.api = Routes(plane), Dispatcher(app.admission)
    app.api.add(ROUTES, app.endpoints, BASE)
    app.api.add(ADMIN_ROUTES, AdminRoutes(plane))
    app.parts = Kept(plane.ready, limits.READY_KEPT_MS)
    app.metrics = Metrics(plane, app.api, process, version, frames)
    app.api.add(DEPLOY_ROUTES, DeployRoutes(plane))
    app.api.add(MIGRATION_ROUTES, MigrationRoutes(plane))
    app.dashboard = DashboardFiles() if dashboard else None

    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        parts = {} if app.draining else await app.parts.get()
        ready = bool(parts) and all(parts.values())
        body: dict[str, Any] = {"status": "ready" if ready else "not ready"}
        if parts.get(IDENTITY_PART) is False:  # told to all: nobody can show who he is
            body["reason"] = "tokens can't be read"
        if "authorization" in request.headers:  # who asks without is no failed attempt
            with contextlib.suppress(ToqueError):
                await app.principal(request.scope)
                body |= {"draining": app.draining, "parts": parts}
        headers = None if ready else {"retry-after": "1"}
        return JSONResponse(body, 200 if ready else 503, headers)

    async def metrics(request: Request) -> Response:
        who: Principal = request.scope["toque.principal"]
        try:
            who.check_operator()  # they show every account's workflows
        except ToqueError as error:
            return _response(error)
        return Response(await app.metrics.page.get(), headers={"content-type": CONTENT_TYPE})

    app.add_api_route("/healthz", healthz, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/readyz", readyz, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/metrics", metrics, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _refuse)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    """The answer where no route is found."""
    status = getattr(error, "status_code", 500)
    if status == 405:
        allowed = (getattr(error, "headers", None) or {}).get("Allow", "GET").split(", ")
        return _response(
            MethodNotAllowed(f"this path takes {', '.join(allowed)}.", {"allowed": allowed})
        )
    if status == 404:
        return _response(RouteNotFound(f"there is no path {request.url.path!r:.200}."))
    return _response(error)


def _response(error: BaseException) -> Response:
    status, headers, body = answer_of(error)
    pairs = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, pairs)
