"""Which control plane an account is on, and the guard of methods that need a certain one.

An account is on V1 (one entity, `migration.account_old`, is registry, coordinator, queue and rate
limiter of all its workflows), on V2 (Account, Gatekeeper, SousChefs), or between the two for the
moment of the cut-over. Each entity that takes part keeps the plane in its own rows and refuses
what belongs to another: whoever routed the call by older knowledge asks again where to go.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import msgspec

from ..runtime.errors import CallerError, SystemFault

Plane = Literal["v1", "moving", "v2"]
"""`moving`: V1 has stopped and V2 does not serve yet; it lasts as long as a few commits."""

PLANES: tuple[Plane, ...] = ("v1", "moving", "v2")

MADE_ON: tuple[Plane, ...] = ("v1", "v2")
"""What an account can be made on."""

_M = TypeVar("_M", bound=Callable[..., Any])


class PlaneInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where an account's calls go.

    Attributes:
        plane: see `Plane`.
        healing: on `v2`: the account came from V1, which may still hold queued instances without
            an Engine. It is asked before an id is used for the first time, and when an
            instance is not found.
        from_v1: on `v2`: the account came from V1, some of whose instances may still live.
    """

    plane: Plane = "v2"
    healing: bool = False
    from_v1: bool = False


ON_V2 = PlaneInfo()
"""Where every account is that was not made on V1."""


class WrongControlPlane(SystemFault):
    """The account is on another control plane than the call is for. Nothing was done.

    `data`: `account`, `requires` and `is` (a `Plane` each). Whoever routes calls asks anew where
    the account is, and sends the call there.
    """

    code = "plane.wrong"
    number = 10610
    status = 503
    retryable = True


class PlaneUnsupported(CallerError):
    """The control plane that the account is on has no such thing. Nothing was changed.

    `data`: `account`, `field`.
    """

    code = "plane.unsupported"
    number = 10620


class StaleMigration(CallerError):
    """A migration that was given up, or another than the account's, has said something.

    Nothing was changed.

    `data`: `account`, `migration_id` and `reason`.
    """

    code = "migration.stale"
    number = 10621


class InstanceUnborn(SystemFault):
    """The instance's create was acknowledged on control plane V1, but it has no Engine yet.

    Nothing was done. It has one soon; or only when the account moves to V2, if the message that
    was to make it was lost.
    """

    code = "instance.unborn"
    number = 10622
    retryable = True


def requires(*planes: Plane) -> Callable[[_M], _M]:
    """Guard a handler: it runs only while its entity's `plane` is one of these.

    The entity has the attributes `plane` (a `Plane`) and `ctx`, whose key begins with the account.

    Raises (the guarded handler):
        WrongControlPlane
    """

    def guard(method: _M) -> _M:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **named: Any) -> Any:
            if self.plane not in planes:
                account = self.ctx.ref.key.split("/", 1)[0]
                raise WrongControlPlane(
                    f"account {account!r} is on control plane {self.plane}; {method.__name__} "
                    f"is for {' or '.join(planes)}.",
                    {"account": account, "requires": list(planes), "is": self.plane},
                )
            return method(self, *args, **named)

        guarded.planes = planes  # type: ignore[attr-defined]
        return cast(_M, guarded)

    return guard


def commits_to_v2(unless: Callable[..., bool]) -> Callable[[_M], _M]:
    """Guard a handler that changes what V1 would not know of if the account went back there.

    The entity has `_is_settled`, whether there is no way back, and `_settle`, which sees to it.

    Args:
        unless: with what the handler gets it tells whether that changes nothing, as when a server
            that is started again deploys what it has: then there is still a way back.
    """

    def guard(method: _M) -> _M:
        async def settled(self: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            await self._settle()
            return method(self, *args, **named)

        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **named: Any) -> Any:
            if self._is_settled or unless(self, *args, **named):
                return method(self, *args, **named)
            return settled(self, args, named)

        return cast(_M, guarded)

    return guard


def never(*_: Any, **__: Any) -> bool:
    """For `commits_to_v2`: it always changes something, or refuses to."""
    return False
