"""Parts of the blocking client for whoever runs a server: see `client_admin`.

Made by docs/twin.py from the async client; change that, then run `make docs`.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from ..engines.durations import Duration
from .client_admin import (
    AccountsClient,
    LimitsClient,
    MigrationsClient,
    ScriptsClient,
    TokensClient,
)
from .client_portal import Blocking
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


class BlockingAccounts(Blocking[AccountsClient]):
    """Accounts. Making and listing them needs an operator's token."""

    def list(self) -> list[Account]:
        """All accounts that the token reaches."""
        return self._portal.run(self._inner.list())

    def get(self, id: str | None = None) -> Account:
        """An account; None: the client's own. Scope `read`."""
        return self._portal.run(self._inner.get(id))

    def create(
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
        return self._portal.run(
            self._inner.create(id, name, control_plane=control_plane, request_id=request_id)
        )


class BlockingTokens(Blocking[TokensClient]):
    """Tokens. Scope `admin`; `account="*"` stands for operators' tokens."""

    def list(self, *, account: str | None = None) -> list[Token]:
        """An account's tokens, without their secrets; None: the client's own account."""
        return self._portal.run(self._inner.list(account=account))

    def create(
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
        return self._portal.run(
            self._inner.create(
                name, scope, expires_in=expires_in, account=account, request_id=request_id
            )
        )

    def revoke(self, id: str, *, account: str | None = None, request_id: str | None = None) -> None:
        """Make a token invalid, everywhere within a second."""
        self._portal.run(self._inner.revoke(id, account=account, request_id=request_id))


class BlockingLimits(Blocking[LimitsClient]):
    """Limits, in effect at once when changed. Reading: scope `read`; changing: `admin`."""

    def get(self, *, account: str | None = None) -> AccountLimits:
        """An account's limits; None: the client's own account."""
        return self._portal.run(self._inner.get(account=account))

    def set(
        self, *, account: str | None = None, request_id: str | None = None, **changes: Any
    ) -> AccountLimits:
        """Change some of an account's limits; what is not named stays.

        Args:
            account: whose; None: the client's own account.
            request_id: of the call. The same change again sets the same again, over newer ones too.
            changes: `running_max`, `creates_per_second`, and, as durations,
                `success_retention` and `error_retention`; None: the default again.
        """
        return self._portal.run(self._inner.set(account=account, request_id=request_id, **changes))

    def get_workflow(self, workflow: str, *, account: str | None = None) -> WorkflowLimits:
        """A workflow's limits."""
        return self._portal.run(self._inner.get_workflow(workflow, account=account))

    def set_workflow(
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
        return self._portal.run(
            self._inner.set_workflow(workflow, account=account, request_id=request_id, **changes)
        )


class BlockingScripts(Blocking[ScriptsClient]):
    """Deployed code. Reading: scope `read`; deploying: `admin`."""

    def list(self, *, account: str | None = None) -> list[Script]:
        """An account's scripts; None: the client's own account."""
        return self._portal.run(self._inner.list(account=account))

    def deploy(
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
        return self._portal.run(
            self._inner.deploy(
                path, script, take_over=take_over, account=account, request_id=request_id
            )
        )


class BlockingMigrations(Blocking[MigrationsClient]):
    """Moving accounts from V1 to V2; all of it needs an operator's token."""

    def plan(self, account: str | None = None) -> MigrationPlan:
        """What a move would do, and what speaks against it. Changes nothing.

        Args:
            account: whose; None: the client's own account.
        """
        return self._portal.run(self._inner.plan(account))

    def status(self, account: str | None = None) -> Migration:
        """How the account's last migration stands."""
        return self._portal.run(self._inner.status(account))

    def start(
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
        return self._portal.run(
            self._inner.start(account, start_in=start_in, request_id=request_id)
        )

    def pause(self, account: str | None = None, *, request_id: str | None = None) -> Migration:
        """Have it hold before the freeze, while it heals, or while it drains."""
        return self._portal.run(self._inner.pause(account, request_id=request_id))

    def resume(self, account: str | None = None, *, request_id: str | None = None) -> Migration:
        """Have it go on."""
        return self._portal.run(self._inner.resume(account, request_id=request_id))

    def abort(self, account: str | None = None, *, request_id: str | None = None) -> Migration:
        """Take it back: V1 serves the account again.

        Raises:
            MigrationNotFound: there is none.
            AbortRefused: V2 has taken creates already.
        """
        return self._portal.run(self._inner.abort(account, request_id=request_id))
