"""Parts of the client for whoever runs a server: accounts, tokens, limits, code, migrations.

Each needs a token of the scope that its methods name; else they raise `Forbidden`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ..engines.bundle_store import read_app
from ..engines.durations import Duration, duration_ms
from ..gatekeeper.deploys import check_script_name
from ..gatekeeper.planes import MADE_ON
from ..migration.refusals import AbortRefused  # noqa: F401 - its code is known by import
from ..runtime import limits as bounds
from ..runtime.entropy import Entropy
from ..runtime.errors import InvalidArgument
from ..runtime.guarded import shown
from ..runtime.ids import check_account_id, check_workflow_name
from . import client_checks as check
from .client_port import Backend
from .client_values import (
    Account,
    AccountLimits,
    Migration,
    MigrationPlan,
    NewToken,
    Script,
    Token,
    WorkflowLimits,
)

T = TypeVar("T")
SCOPES = ("read", "write", "admin")
OPERATOR = "*"
ACCOUNT_LIMITS = ("running_max", "creates_per_second", "success_retention", "error_retention")
WORKFLOW_LIMITS = (
    "running_max",
    "weight",
    "creates_per_second",
    "souschefs",
    "steps",
    "success_retention",
    "error_retention",
    "queued_max",
)
_RIGHT = {
    "running_max": "running_max=1000",
    "weight": "weight=2",
    "creates_per_second": "creates_per_second=50",
    "souschefs": "souschefs=4",
    "steps": "steps=1000",
    "queued_max": "queued_max=100000",
    "success_retention": "success_retention='3 days'",
    "error_retention": "error_retention='30 days'",
}


class _Part:
    """A part of a client.

    Args:
        backend: how the control plane is reached.
        entropy: request ids.
    """

    def __init__(self, backend: Backend, entropy: Entropy) -> None:
        self._backend = backend
        self._entropy = entropy

    def _account(self, given: str | None) -> str:
        if given is None:
            return self._backend.account
        return given if given == OPERATOR else check_account_id(given)

    async def _all(self, kind: type[T], words: Sequence[str]) -> list[T]:
        """All items of a list that comes in pages."""
        several: Any = list[kind]  # type: ignore[valid-type]
        found: list[T] = []
        page = 1
        while True:
            query = {"page": str(page), "per_page": str(bounds.PER_PAGE_MAX)}
            part: list[T] = await self._backend.manage(several, "GET", words, query=query)
            found += part
            if len(part) < bounds.PER_PAGE_MAX:
                return found
            page += 1

    def _request_id(self, given: str | None) -> str:
        return self._entropy.new_id() if given is None else check.request_id(given)


class AccountsClient(_Part):
    """Accounts. Making and listing them needs an operator's token."""

    async def list(self) -> list[Account]:
        """All accounts that the token reaches."""
        return await self._all(Account, ["accounts"])

    async def get(self, id: str | None = None) -> Account:
        """An account; None: the client's own. Scope `read`."""
        return await self._backend.manage(Account, "GET", ["accounts", self._account(id)])

    async def create(
        self,
        id: str | None = None,
        name: str | None = None,
        *,
        control_plane: str | None = None,
        request_id: str | None = None,
    ) -> Account:
        """Make an account.

        Args:
            id: None: one is made.
            name: for people.
            control_plane: that it begins on: `"v1"` or `"v2"`; None: `"v2"`.
            request_id: the same one again gives the same account.

        Raises:
            AccountAlreadyExists: and it stays on the control plane that it is on.
        """
        body: dict[str, Any] = {}
        if id is not None:
            body["id"] = check_account_id(id)
        if name is not None:
            body["name"] = check.text(name, "name", "name='The shop'")
        if control_plane is not None:
            body["control_plane"] = check.choice(control_plane, "control_plane", MADE_ON)
        key = self._request_id(request_id)
        return await self._backend.manage(Account, "POST", ["accounts"], body=body, request_id=key)


class TokensClient(_Part):
    """Tokens. Scope `admin`; `account="*"` stands for operators' tokens."""

    async def list(self, *, account: str | None = None) -> list[Token]:
        """An account's tokens, without their secrets; None: the client's own account."""
        words = ["accounts", self._account(account), "tokens"]
        return await self._all(Token, words)

    async def create(
        self,
        name: str,
        scope: str = "write",
        *,
        expires_in: Duration | None = None,
        account: str | None = None,
        request_id: str | None = None,
    ) -> NewToken:
        """Make a token. Its text is in the answer, and is never shown again.

        Args:
            name: for people.
            scope: `read`, `write` or `admin`; each may do what those before it may.
            expires_in: how long it is valid, for example `"30 days"`; None: until it is revoked.
            account: whose; None: the client's own account.
            request_id: the same one again makes no second token.
        """
        body: dict[str, Any] = {
            "name": check.text(name, "name", "name='ci'"),
            "scope": check.choice(scope, "scope", SCOPES),
        }
        if expires_in is not None:
            least, most = bounds.TOKEN_LIFE_MIN_MS, bounds.TOKEN_LIFE_MAX_MS
            ms = duration_ms(expires_in, "expires_in", min_ms=least, max_ms=most)
            body["expires_in"] = ms
        words = ["accounts", self._account(account), "tokens"]
        return await self._backend.manage(
            NewToken, "POST", words, body=body, request_id=self._request_id(request_id)
        )

    async def revoke(
        self, id: str, *, account: str | None = None, request_id: str | None = None
    ) -> None:
        """Make a token invalid, everywhere within a second."""
        found = check.text(id, "id", "the token's id, as 'list' shows it")
        words = ["accounts", self._account(account), "tokens", found]
        await self._backend.manage(Any, "DELETE", words, request_id=self._request_id(request_id))


class LimitsClient(_Part):
    """Limits, in effect at once when changed. Reading: scope `read`; changing: `admin`."""

    async def get(self, *, account: str | None = None) -> AccountLimits:
        """An account's limits; None: the client's own account."""
        words = ["accounts", self._account(account), "limits"]
        return await self._backend.manage(AccountLimits, "GET", words)

    async def set(
        self, *, account: str | None = None, request_id: str | None = None, **changes: Any
    ) -> AccountLimits:
        """Change some of an account's limits; what is not named stays.

        Args:
            account: whose; None: the client's own account.
            request_id: of the call. The same change again sets the same again, over newer ones too.
            changes: `running_max`, `creates_per_second`, and, as durations,
                `success_retention` and `error_retention`; None: the default again.
        """
        words = ["accounts", self._account(account), "limits"]
        body = _limits(changes, ACCOUNT_LIMITS)
        key = self._request_id(request_id)
        return await self._backend.manage(AccountLimits, "PATCH", words, body=body, request_id=key)

    async def get_workflow(self, workflow: str, *, account: str | None = None) -> WorkflowLimits:
        """A workflow's limits."""
        return await self._backend.manage(WorkflowLimits, "GET", self._of(workflow, account))

    async def set_workflow(
        self,
        workflow: str,
        *,
        account: str | None = None,
        request_id: str | None = None,
        **changes: Any,
    ) -> WorkflowLimits:
        """Change some of a workflow's limits; what is not named stays.

        Args:
            workflow: which.
            account: whose; None: the client's own account.
            request_id: of the call. The same change again sets the same again, over newer ones too.
            changes: `running_max` (0: the account's only), `weight`, `creates_per_second`,
                `souschefs` ("auto": as the load needs), `steps`, `queued_max`, and, as durations,
                `success_retention` and `error_retention`; None: the default again.
        """
        body = _limits(changes, WORKFLOW_LIMITS)
        key = self._request_id(request_id)
        return await self._backend.manage(
            WorkflowLimits, "PATCH", self._of(workflow, account), body=body, request_id=key
        )

    def _of(self, workflow: str, account: str | None) -> list[str]:
        name = check_workflow_name(workflow)
        return ["accounts", self._account(account), "workflows", name, "limits"]


class ScriptsClient(_Part):
    """Deployed code. Reading: scope `read`; deploying: `admin`."""

    async def list(self, *, account: str | None = None) -> list[Script]:
        """An account's scripts; None: the client's own account."""
        words = ["accounts", self._account(account), "scripts"]
        return await self._all(Script, words)

    async def deploy(
        self,
        path: str | PathLike[str],
        script: str | None = None,
        *,
        take_over: bool = False,
        account: str | None = None,
        request_id: str | None = None,
    ) -> Script:
        """Deploy the code of a file or a folder; new instances take it, running ones keep theirs.

        Args:
            path: a Python file, or a folder with an `app.py` or `main.py`, or a package.
            script: the name that it is deployed under; None: the file's or the folder's own.
            take_over: names of workflows that other scripts have become this one's.
            account: whose; None: the client's own account.
            request_id: of the call. The same code again is no new version, unless other came since.

        Raises:
            BundleInvalid: there is no code there that can be deployed.
            BundleRefused: it does not import on the server; the text says why.
            WorkflowOwned: a name belongs to another script.
        """
        file = Path(check.path(path, "path", "path='app.py'"))
        check.flag(take_over, "take_over")
        if script is not None:
            check.text(script, "script", "script='orders'")
        bundle = await asyncio.to_thread(read_app, file)
        name = check_script_name(file.resolve().name if script is None else script)
        return await self._backend.manage(
            Script,
            "PUT",
            ["accounts", self._account(account), "scripts", name],
            query={"take_over": "true"} if take_over else None,
            body=bundle.to_zip(),
            request_id=self._request_id(request_id),
        )


class MigrationsClient(_Part):
    """Moving accounts from V1 to V2; all of it needs an operator's token."""

    async def plan(self, account: str | None = None) -> MigrationPlan:
        """What a move would do, and what speaks against it. Changes nothing.

        Args:
            account: whose; None: the client's own account.
        """
        return await self._backend.manage(MigrationPlan, "GET", self._of(account, "plan"))

    async def status(self, account: str | None = None) -> Migration:
        """How the account's last migration stands."""
        return await self._backend.manage(Migration, "GET", self._of(account))

    async def start(
        self,
        account: str | None = None,
        *,
        start_in: Duration | None = None,
        request_id: str | None = None,
    ) -> Migration:
        """Begin to move an account. It goes on by itself, whoever asked.

        Args:
            account: which; None: the client's own account.
            start_in: when, for example `"10 minutes"`; None: now.
            request_id: the same one again is the same migration.

        Raises:
            MigrationRefused: something speaks against it; `plan` tells what.
            MigrationUnderWay: it is being moved already.
        """
        body: dict[str, Any] = {}
        if start_in is not None:
            most = bounds.MIGRATION_START_MAX_MS
            body["start_in"] = duration_ms(start_in, "start_in", max_ms=most)
        key = self._request_id(request_id)
        words = self._of(account)
        return await self._backend.manage(Migration, "POST", words, body=body, request_id=key)

    async def pause(
        self, account: str | None = None, *, request_id: str | None = None
    ) -> Migration:
        """Have it hold before the freeze, while it heals, or while it drains."""
        return await self._change(account, "pause", request_id)

    async def resume(
        self, account: str | None = None, *, request_id: str | None = None
    ) -> Migration:
        """Have it go on."""
        return await self._change(account, "resume", request_id)

    async def abort(
        self, account: str | None = None, *, request_id: str | None = None
    ) -> Migration:
        """Take it back: V1 serves the account again.

        Raises:
            MigrationNotFound: there is none.
            AbortRefused: V2 has taken creates already.
        """
        return await self._change(account, "abort", request_id)

    async def _change(self, account: str | None, change: str, request_id: str | None) -> Migration:
        words = self._of(account, change)
        key = self._request_id(request_id)
        return await self._backend.manage(Migration, "POST", words, request_id=key)

    def _of(self, account: str | None, *more: str) -> list[str]:
        return ["accounts", self._account(account), "migration", *more]


def _limits(changes: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """A change of limits, checked."""
    if not changes:
        raise InvalidArgument(f"name what to change: {', '.join(known)}. Right: running_max=1000.")
    body: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise InvalidArgument(
                f"{shown(name)} is no limit; they are {', '.join(known)}. "
                f"Right: {_RIGHT[known[0]]}."
            )
        if value is None or (name == "souschefs" and value == "auto"):
            body[name] = value
        elif name.endswith("retention"):
            body[name] = duration_ms(value, name, max_ms=bounds.RETENTION_MAX_MS)
        elif not isinstance(value, int) or isinstance(value, bool) or value < 0:
            check.refuse(name, value, "a whole number", _RIGHT[name])
        else:
            body[name] = value
    return body
