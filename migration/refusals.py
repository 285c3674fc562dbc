"""Errors of migrations.

Each refuses before anything is changed; its code and number never change.
"""

from __future__ import annotations

from ..runtime.errors import CallerError


class MigrationRefused(CallerError):
    """Something speaks against moving the account. Nothing was changed.

    `data`: `objections`, a sentence each.
    """

    code = "migration.refused"
    number = 10611
    status = 422


class MigrationNotFound(CallerError):
    """The account is not being moved, and was not."""

    code = "migration.not_found"
    number = 10612
    status = 404


class AbortRefused(CallerError):
    """The migration can't be taken back any more. It goes on.

    `data`: `since_ms`, when it became too late.
    """

    code = "migration.too_late"
    number = 10613
    status = 422


class MigrationUnderWay(CallerError):
    """The account is being moved already, by another request."""

    code = "migration.under_way"
    number = 10614
    status = 422
