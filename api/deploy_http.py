"""The routes of deployed code: scripts, and the workflows that are registered.

Never on the hot path: a deploy imports code, and the others are as rare.
"""

from __future__ import annotations

import msgspec

from ..runtime import limits
from ..runtime.errors import InvalidArgument
from . import deploy_shapes, requests, shapes
from .auth import ADMIN, READ
from .dispatch_http import ACCOUNT, Request, Route
from .service import ControlPlane

_SCRIPTS = ("toque", "v1", "accounts", ACCOUNT, "scripts")
_WORKFLOW = ("client", "v4", "accounts", ACCOUNT, "workflows", "{}")
_workflow_body = msgspec.json.Decoder(deploy_shapes.WorkflowBody)

DEPLOY_ROUTES = (
    Route("GET", _SCRIPTS, "list_scripts", READ),
    Route("PUT", (*_SCRIPTS, "{}"), "deploy", ADMIN),
    Route("PUT", _WORKFLOW, "put_workflow", ADMIN),
    Route("DELETE", _WORKFLOW, "delete_workflow", ADMIN),
)


class DeployRoutes:
    """The endpoints of the table.

    Args:
        plane: the operations.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._deploys = plane.deploys

    async def _list_scripts(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("page", "per_page"))
        page, per_page = requests.parse_page(query)
        found = deploy_shapes.script_shapes(await self._deploys.scripts(request.account))
        shown = found[(page - 1) * per_page : page * per_page]
        info = shapes.list_info(len(shown), per_page, len(found), page, None)
        return shapes.answer_list(shown, info)

    async def _deploy(self, request: Request) -> bytes:
        query = requests.parse_query(request.query, ("take_over",))
        take_over = requests.parse_choice(query, "take_over", ("false", "true")) == "true"
        raw = await request.body(limits.BUNDLE_BYTES_MAX)
        (script,) = request.words
        found = await self._deploys.deploy(request.account, script, raw, take_over=take_over)
        return shapes.answer(deploy_shapes.deploy_shape(found))

    async def _put_workflow(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        known = deploy_shapes.WorkflowBody.__struct_fields__
        body = requests.decode(_workflow_body, await request.body(), known)
        if body.schedules:
            raise InvalidArgument(
                "'schedules' is not taken here: this server starts no workflow by the clock. Leave "
                "it out, and create instances from a scheduler of your own."
            )
        (name,) = request.words
        found = await self._deploys.register(
            request.account,
            name,
            body.class_name,
            body.script_name,
            deploy_shapes.limits_of(body),
        )
        is_clearing = await self._plane.is_clearing(request.account, found.record.uuid)
        return shapes.answer(deploy_shapes.registered_shape(found, is_clearing=is_clearing))

    async def _delete_workflow(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        (name,) = request.words
        await self._deploys.delete(request.account, name)
        return shapes.answer(deploy_shapes.OkShape())
