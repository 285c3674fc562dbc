"""Errors of accounts, tokens, rates and queue room.

Each refuses before anything is made; its code and number never change.
"""

from __future__ import annotations

from ..runtime.errors import CallerError


class AccountNotFound(CallerError):
    """There is no account of that id. Only an operator learns this; others hear `Forbidden`."""

    code = "account.not_found"
    number = 10600
    status = 404


class AccountAlreadyExists(CallerError):
    """The account's id is in use."""

    code = "account.already_exists"
    number = 10601


class TooManyAccounts(CallerError):
    """The server holds as many accounts as it may."""

    code = "account.too_many"
    number = 10602


class TokenNotFound(CallerError):
    """The account has no token of that id."""

    code = "token.not_found"
    number = 10603
    status = 404


class TooManyTokens(CallerError):
    """The account, or the server, holds as many tokens as it may."""

    code = "token.too_many"
    number = 10604


class RateLimited(CallerError):
    """More creates a second than the account or the workflow may have. Nothing was made.

    `data` says whose limit it is, the limit, and `retry_after_ms`.
    """

    code = "rate.limited"
    number = 10605
    status = 429
    retryable = True
    overloaded = True


class TooManyFailures(CallerError):
    """Too many requests without a valid token came from this address."""

    code = "auth.too_many_failures"
    number = 10606
    status = 429
    overloaded = True


class QueueFull(CallerError):
    """The workflow has as many queued instances as it may. Nothing was made."""

    code = "workflow.queue_full"
    number = 10607
    status = 429
    retryable = True
    overloaded = True
