"""Serves the files of the dashboard: to everybody, since they hold no data.

What the page shows it asks of the API, with the token of who looks at it. `/dashboard` leads to
`/dashboard/` by a relative address, so that it works behind a proxy that puts a prefix before all
paths.
"""

from __future__ import annotations

from starlette.responses import Response

from ..dashboard.assets import PAGE, load_assets
from ..runtime.errors import MethodNotAllowed, RouteNotFound
from .dispatch_http import Scope

FOLDER = "/dashboard"
_METHODS = ("GET", "HEAD")


def dashboard_url(server_url: str) -> str:
    """Where the page of a server is."""
    return f"{server_url}{FOLDER}/"


class DashboardFiles:
    """See the module's description."""

    def __init__(self) -> None:
        self._assets = load_assets()

    @staticmethod
    def has(path: str) -> bool:
        """Whether a path is one of the dashboard's."""
        return path == FOLDER or path.startswith(FOLDER + "/")

    def answer(self, scope: Scope) -> Response:
        """The answer to a request for one of its paths.

        Raises:
            RouteNotFound: there is no such file.
            MethodNotAllowed: files are only read.
        """
        if scope["method"] not in _METHODS:
            allowed = {"allowed": list(_METHODS)}
            raise MethodNotAllowed(f"this path takes {', '.join(_METHODS)}.", allowed)
        path: str = scope["path"]
        if path == FOLDER:
            return Response(status_code=307, headers={"location": f"{FOLDER[1:]}/"})
        asset = self._assets.get(path[len(FOLDER) + 1 :] or PAGE)
        if asset is None:
            raise RouteNotFound(f"there is no path {path!r:.200}; the dashboard is {FOLDER}/.")
        asked = dict(scope["headers"]).get(b"if-none-match", b"").decode("latin-1")
        if asset.etag in asked:
            headers = {name: text for name, text in asset.headers.items() if name != "content-type"}
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=asset.headers)
