"""The described routes of accounts, tokens, limits and scripts, and of what a token reaches.

Those under `/toque/v1/` are toque's own; the others are Cloudflare's, whose tools ask them first.
"""

from __future__ import annotations

from typing import Any

from ..runtime import limits
from . import admin_shapes, deploy_shapes
from . import openapi_examples as examples
from .doctor import KINDS, Told
from .openapi_operations import PAGE, PER_PAGE, Json, Operation, text
from .overview import AccountOverview

_TOQUE = "/toque/v1"
_CLOUDFLARE = "/client/v4"
_ACCOUNTS = _TOQUE + "/accounts"
_ACCOUNT = _ACCOUNTS + "/{account_id}"
_TOKENS = _ACCOUNT + "/tokens"
_LIMITS = _ACCOUNT + "/limits"
_WORKFLOW_LIMITS = _ACCOUNT + "/workflows/{workflow_name}/limits"
_SCRIPTS = _ACCOUNT + "/scripts"

_PAGED: Json = {"page": PAGE, "per_page": PER_PAGE}
_REACHED: Json = {
    **_PAGED,
    "direction": text("By id.", enum=["asc", "desc"], default="asc"),
    "name": text("Only accounts of this name."),
}
_NAMED = {"id": "shop", "name": "The shop", "created_on": examples.TIME}
_ACCOUNT_EXAMPLE = {**_NAMED, "control_plane": "v2"}
_CLOUDFLARE_ACCOUNT = {**_NAMED, "type": "standard", "settings": {}}
_TOKEN = {
    "id": "4mJqvX0cWb1D",
    "name": "deploys of the shop",
    "account": "shop",
    "scope": "write",
    "created_on": examples.TIME,
    "expires_on": None,
}
_ACCOUNT_LIMITS = {
    "running_max": limits.RUNNING_PER_ACCOUNT_DEFAULT,
    "creates_per_second": 300,
    "success_retention": None,
    "error_retention": None,
    "generation": 7,
}
_OF_WORKFLOW = {
    "running_max": 0,
    "weight": 1,
    "creates_per_second": 100,
    "souschefs": 1,
    "steps": None,
    "success_retention": None,
    "error_retention": None,
    "queued_max": limits.QUEUED_PER_WORKFLOW_MAX,
    "souschefs_auto": True,
}
_DEPLOYED: dict[str, Any] = {
    "name": "orders",
    "class_name": "Orders",
    "version_id": examples.UUID,
    "id": examples.WORKFLOW["id"],
    "is_new": True,
}
_OVERVIEW = {
    "account": "shop",
    "control_plane": "v2",
    "running_max": limits.RUNNING_PER_ACCOUNT_DEFAULT,
    "used": 12,
    "leased": 20,
    "wanted": 18,
    "workflows": [
        {
            "name": "orders",
            "queued": 6,
            "running": 12,
            "waiting": 300,
            "paused": 0,
            "ended": {"complete": 20_000, "errored": 3},
            "lease": 20,
            "queue_age_ms": 850,
            "souschefs": 1,
        }
    ],
    "complete": True,
    "time": examples.TIME,
}
_CODE_HASH = "9a4c3d7be16f0a55c2e8b7d1f3a6905e4c1b2d3f8e7a6b5c4d3e2f1a0b9c8d7e"

ADMIN_OPERATIONS = (
    Operation(
        "get",
        _TOQUE + "/whoami",
        "whoami",
        "What the token stands for.",
        admin_shapes.Whoami,
        {"account": "shop", "scope": "write", "token_id": _TOKEN["id"], "name": _TOKEN["name"]},
        {},
    ),
    Operation(
        "get",
        _TOQUE + "/shards",
        "shards",
        "Counters of each shard that answers.",
        dict[str, dict[str, Any]],
        {"d0": {"live_entities": 12, "calls": 120}},
        {},
    ),
    Operation(
        "get",
        _TOQUE + "/doctor",
        "doctor",
        "What is wrong with the server, by what its parts tell; an empty list: nothing.",
        list[Told],
        [
            {
                "code": "shard.late",
                "place": "d0",
                "detail": "alarm_late_ms_max is 90000",
                "meaning": KINDS["shard.late"].meaning,
                "fix": "",
                "fixed": False,
                "note": False,
            }
        ],
        {},
    ),
    Operation(
        "get",
        _ACCOUNTS,
        "listAccounts",
        "List all accounts by id.",
        admin_shapes.AccountShape,
        [_ACCOUNT_EXAMPLE],
        _REACHED,
        listed=True,
    ),
    Operation(
        "post",
        _ACCOUNTS,
        "createAccount",
        "Make an account. `control_plane`: `v2` if it is not given; see docs/control-planes.md.",
        admin_shapes.AccountShape,
        _ACCOUNT_EXAMPLE,
        {},
        body=admin_shapes.AccountBody,
        body_example={"id": "shop", "name": "The shop"},
        keyed=True,
    ),
    Operation(
        "get",
        _ACCOUNT,
        "getAccount",
        "Get an account.",
        admin_shapes.AccountShape,
        _ACCOUNT_EXAMPLE,
        {},
    ),
    Operation(
        "get",
        _ACCOUNT + "/overview",
        "getOverview",
        "How the account does just now: slots, queues and their ages, by workflow.",
        AccountOverview,
        _OVERVIEW,
        {},
    ),
    Operation(
        "get",
        _TOKENS,
        "listTokens",
        "List the account's tokens, without their texts. Account `*`: operators' tokens.",
        admin_shapes.TokenShape,
        [_TOKEN],
        _PAGED,
        listed=True,
    ),
    Operation(
        "post",
        _TOKENS,
        "createToken",
        "Make a token; its text is in this answer and nowhere else. Sent again with the same key "
        "it gives the same token another text.",
        admin_shapes.TokenShape,
        {**_TOKEN, "token": f"tq_{_TOKEN['id']}_..."},
        {},
        body=admin_shapes.TokenBody,
        body_example={"name": "deploys of the shop", "scope": "write", "expires_in": "90 days"},
        keyed=True,
    ),
    Operation(
        "delete",
        _TOKENS + "/{token_id}",
        "revokeToken",
        "Revoke a token: refused everywhere within a second.",
        admin_shapes.TokenRevoked,
        {"id": _TOKEN["id"]},
        {},
    ),
    Operation(
        "get",
        _LIMITS,
        "getLimits",
        "The account's limits.",
        admin_shapes.AccountLimitsShape,
        _ACCOUNT_LIMITS,
        {},
    ),
    Operation(
        "patch",
        _LIMITS,
        "changeLimits",
        "Change the account's limits that are given; null: the default again.",
        admin_shapes.AccountLimitsShape,
        _ACCOUNT_LIMITS,
        {},
        body=admin_shapes.AccountLimitsBody,
        body_example={"running_max": 2000, "success_retention": "3 days"},
    ),
    Operation(
        "get",
        _WORKFLOW_LIMITS,
        "getWorkflowLimits",
        "A workflow's limits.",
        admin_shapes.WorkflowLimitsShape,
        _OF_WORKFLOW,
        {},
    ),
    Operation(
        "patch",
        _WORKFLOW_LIMITS,
        "changeWorkflowLimits",
        "Change a workflow's limits that are given; null: the default again.",
        admin_shapes.WorkflowLimitsShape,
        _OF_WORKFLOW,
        {},
        body=admin_shapes.WorkflowLimitsBody,
        body_example={"running_max": 500, "weight": 2, "steps": 1000},
    ),
    Operation(
        "get",
        _SCRIPTS,
        "listScripts",
        "List the deployed scripts, and the workflows that are theirs.",
        deploy_shapes.ScriptShape,
        [
            {
                "script": "shop.py",
                "code_hash": _CODE_HASH,
                "created_on": examples.TIME,
                "modified_on": examples.TIME,
                "workflows": [{**_DEPLOYED, "is_new": False}],
            }
        ],
        _PAGED,
        listed=True,
    ),
    Operation(
        "put",
        _SCRIPTS + "/{script_name}",
        "deploy",
        "Deploy code: new instances of its workflows take it, running ones stay on theirs. The "
        f"body is a zip of Python sources, at most {limits.BUNDLE_BYTES_MAX} bytes.",
        deploy_shapes.DeployShape,
        {
            "script": "shop.py",
            "code_hash": _CODE_HASH,
            "workflows": [_DEPLOYED],
            "left": [],
            "created_on": "2026-03-01T09:00:00.000Z",
            "modified_on": "2026-03-14T15:09:26.535Z",
        },
        {
            "take_over": text(
                "`true`: names of other scripts become this one's.",
                enum=["false", "true"],
                default="false",
            )
        },
        body=bytes,
        body_type="application/zip",
    ),
    Operation(
        "get",
        _CLOUDFLARE + "/accounts",
        "reachedAccounts",
        "The accounts that the token reaches, as Cloudflare's tools ask.",
        admin_shapes.CloudflareAccount,
        [_CLOUDFLARE_ACCOUNT],
        _REACHED,
        listed=True,
    ),
    Operation(
        "get",
        _CLOUDFLARE + "/accounts/{account_id}",
        "reachedAccount",
        "An account that the token reaches, as Cloudflare's tools ask.",
        admin_shapes.CloudflareAccount,
        _CLOUDFLARE_ACCOUNT,
        {},
    ),
    Operation(
        "get",
        _CLOUDFLARE + "/memberships",
        "memberships",
        "That the token belongs to accounts, as Cloudflare's tools ask.",
        admin_shapes.Membership,
        [
            {
                "id": "shop",
                "status": "accepted",
                "account": _CLOUDFLARE_ACCOUNT,
                "roles": ["Administrator"],
                "permissions": {},
            }
        ],
        _REACHED,
        listed=True,
    ),
    Operation(
        "get",
        _CLOUDFLARE + "/user/tokens/verify",
        "verifyToken",
        "That the token is valid, as Cloudflare's tools ask.",
        admin_shapes.TokenVerified,
        {"id": _TOKEN["id"], "status": "active"},
        {},
    ),
)
