"""What AccountOld is on every plane: a SousChef for all workflows of an account, with an index.

The base of `old_moves` and `account_old`. The Roster and its tables are a SousChef's, word for
word; only where its lease comes from differs by plane. On V1 it is the account's own limit, set
here. While the account moves it is what ran when it was frozen. On V2 it is the Gatekeeper's, as
any SousChef's.

*Births*: the Engine of a new instance is made by one plain message after the create was
acknowledged, and nobody repeats that: this is V1's fault, which is kept. `lost_births` loses some
on purpose.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import msgspec

from ..engines.ports import ENGINE_KIND, Grant, StatusReport
from ..engines.views import CreateRequest, InstanceView
from ..gatekeeper.account import Account
from ..gatekeeper.handover import PlaneBook, plane_table
from ..gatekeeper.messages import CycleRequest
from ..gatekeeper.planes import Plane
from ..gatekeeper.workflow_registry import AccountEnv
from ..runtime import limits
from ..runtime.codec import pack, unpack
from ..runtime.entity import AlarmInfo, Context
from ..runtime.errors import CallerError, EntityReset, InstanceAlreadyExists
from ..runtime.ids import ACCOUNT_OLD_KIND, OLD_SOUSCHEF, EntityRef
from ..runtime.payload_codec import NO_CODECS, Codecs
from ..runtime.store import Store
from ..runtime.tables import Key, Table
from ..souschef.env import SousChefEnv
from ..souschef.souschef import SousChef
from .messages import Frozen
from .old_index import OldIndex
from .old_registry import OldRegistry
from .old_rows import INDEX_TABLES
from .rate_window import RateWindow

OLD_PLANES = plane_table("account_old_planes")
OLD_STATE = Table(
    "account_old_state",
    (
        ("entity", "TEXT"),
        ("frozen", "BLOB"),
        ("first_create_ms", "INTEGER"),
        ("weight", "INTEGER"),
    ),
    key_size=1,
)
OLD_RATE = Table(
    "account_old_rate",
    (
        ("entity", "TEXT"),
        ("creates", "INTEGER"),
        ("refused", "INTEGER"),
        ("window", "TEXT"),
    ),
    key_size=1,
)

_log = logging.getLogger("toque.migration")


@dataclass(frozen=True, kw_only=True)
class AccountOldEnv(SousChefEnv):
    """What the wiring gives an AccountOld.

    Attributes:
        store: the shard's, for lists.
        account: as the Account's.
        running_max: how many slots V1 has at most.
        creates_max: how many creates it takes in a window of V1_CREATES_WINDOW_MS.
        retention: how long instances are kept if their create does not say.
        codecs: what payloads go through on their way to disk.
        lost_births: every so manieth create's message to its Engine is not sent; 0: each is.
    """

    store: Store
    account: AccountEnv = field(default_factory=AccountEnv)
    running_max: int = limits.V1_RUNNING_MAX
    creates_max: int = limits.V1_CREATES_MAX
    retention: tuple[int, int] = (limits.RETENTION_DEFAULT_MS, limits.RETENTION_DEFAULT_MS)
    codecs: Codecs = NO_CODECS
    lost_births: int = 0


class _Move(msgspec.Struct, frozen=True):
    """What AccountOld keeps of the migration that has it.

    Attributes:
        frozen: what was told when it was frozen.
        first_create_ms: when V2 first asked before it made something; 0: it has not.
        weight: the lease's, as the Gatekeeper was told last.
    """

    frozen: Frozen | None = None
    first_create_ms: int = 0
    weight: int = 0


class OldKitchen(SousChef):
    """See the module."""

    KIND = ACCOUNT_OLD_KIND
    TABLES: ClassVar[tuple[Table, ...]] = (
        *SousChef.TABLES,
        *Account.TABLES,
        *INDEX_TABLES,
        OLD_PLANES,
        OLD_STATE,
        OLD_RATE,
    )

    _env: AccountOldEnv

    def __init__(self, ctx: Context, env: AccountOldEnv) -> None:
        super().__init__(ctx, env)
        self._account = self._gatekeeper.key
        self._planes = PlaneBook(ctx, OLD_PLANES)
        self._registry = OldRegistry(ctx, env.account)
        self._index = OldIndex(ctx, self._key, env.codecs.seal(self._account))
        row = ctx.get(OLD_STATE, (self._key,))
        self._move = _Move() if row is None else _move_of(row)
        rate = ctx.get(OLD_RATE, (self._key,)) or (self._key, 0, 0, "")
        _, self._creates, self._refused, kept = rate
        self._window = RateWindow(env.creates_max, limits.V1_CREATES_WINDOW_MS, kept)
        self._births: dict[str, asyncio.Future[Any]] = {}
        self._answers_from = 0
        self._healed_to: Key | None = None
        if self.plane == "v1":
            self._obey_own_limit()

    @property
    def plane(self) -> Plane:
        """Where the account is; see `planes.requires`."""
        return self._planes.state.plane

    # --- the lease --------------------------------------------------------------------------

    def _obey_own_limit(self) -> None:
        """On V1 the lease is the account's limit, as far as V1 goes."""
        target = min(self._env.running_max, self._registry.running_max)
        roster = self._roster
        if roster.target != target:
            roster.on_lease(roster.lease_version + 1, target, self.ctx.clock.now_ms())
            self._after_event()

    def _arm_call(self) -> None:
        if self.plane == "v2":
            super()._arm_call()

    def _call_gatekeeper(self) -> None:
        self._in_line = False
        if self.plane == "v2":
            super()._call_gatekeeper()

    def _on_lease(self, request: CycleRequest, answer: Any) -> None:
        """An answer to what was asked before the account went elsewhere is not obeyed."""
        is_late = self.plane != "v2" or request.seq <= self._answers_from
        super()._on_lease(request, None if is_late else answer)

    def _tell_weight(self) -> None:
        """On V2 the lease weighs as many workflows as have instances here."""
        if self.plane != "v2":
            return
        weight = self._index.weight
        if weight != self._move.weight:
            workflow = OLD_SOUSCHEF.split("/", 1)[0]
            self.ctx.tell(self._gatekeeper, "set_workflow", workflow, weight, 0)
            self._put_move(weight=weight)

    # --- reports ----------------------------------------------------------------------------

    def report(self, reports: list[StatusReport]) -> bool:
        """Engines say how they stand; see `SousChef.report`."""
        if self._closed:
            raise EntityReset(f"{self.ctx.ref} is being reset.")
        try:
            self._index.on_reports(reports)
            self._tell_weight()
        except Exception:
            self._stop()
            raise
        return super().report(reports)

    def _on_grants_answered(self, grants: list[Grant], accepted: list[bool] | None) -> None:
        super()._on_grants_answered(grants, accepted)
        now_ms = self.ctx.clock.now_ms()
        for grant in grants if accepted is not None else ():
            held = self._roster.held.get(grant.key)
            if held is not None and held.run_id == grant.run_id and not held.granted:
                self._index.started(grant.key, grant.run_id, now_ms)

    def _on_poked(self, asked: list[tuple[str, str]], missing: list[str] | None) -> None:
        for key in missing or ():
            entry = self._index.get(key)
            if entry is not None and not entry.unborn and (key, entry.run_id) in asked:
                self._index.drop(key)
        super()._on_poked(asked, missing)

    # --- births -----------------------------------------------------------------------------

    def _bear(self, key: str, request: CreateRequest) -> asyncio.Future[Any]:
        """Send the one message that makes an Engine, or find the one that is on its way."""
        known = self._births.get(key)
        if known is not None:
            return known
        future = self.ctx.call(
            EntityRef(ENGINE_KIND, key),
            "create",
            request,
            timeout_ms=request.wait_ms + limits.CONTROL_CALL_TIMEOUT_MS,
        )
        self._births[key] = future
        future.add_done_callback(partial(self._run, self._on_birth, key))
        return future

    def _on_birth(self, key: str, answered: asyncio.Future[Any]) -> None:
        """An Engine was told to be made. If that is not known, the instance stays unborn."""
        del self._births[key]
        error = None if answered.cancelled() else answered.exception()
        if answered.cancelled():
            return
        if error is None:
            self._index.born(key, msgspec.convert(answered.result(), InstanceView))
        elif isinstance(error, InstanceAlreadyExists):
            _log.warning("%s was made by another create; its Engine says how it stands", key)
            self._index.born(key)
        elif isinstance(error, CallerError):
            _log.warning("%s is dropped, its Engine refuses to be: %s", key, error)
            self._index.drop(key)
        self._tell_weight()

    async def _born(self, key: str) -> None:
        """Wait until an unborn instance's Engine is there, or that it will never be."""
        entry = self._index.get(key)
        if entry is None or not entry.unborn:
            return
        if not self._registry.has(entry.uuid):  # its workflow was deleted
            self._index.drop(key)
            return
        try:
            await self._bear(key, self._index.request_of(entry))
        except CallerError:
            return

    # --- life -------------------------------------------------------------------------------

    def alarm(self, info: AlarmInfo) -> None:
        """Drop whose retention is over; then as `SousChef.alarm`."""
        if not self._closed:
            self._index.sweep(self.ctx.clock.now_ms())
        super().alarm(info)

    def _alarm_due_ms(self) -> int | None:
        due_ms = super()._alarm_due_ms()
        end_ms = self._index.next_end_ms
        if end_ms is None or due_ms is None:
            return due_ms if end_ms is None else end_ms
        return min(due_ms, end_ms)

    # --- rows -------------------------------------------------------------------------------

    def _put_move(self, **changes: Any) -> None:
        move = msgspec.structs.replace(self._move, **changes)
        frozen = pack(move.frozen)
        self.ctx.put(OLD_STATE, (self._key, frozen, move.first_create_ms, move.weight))
        self._move = move

    def _put_rate(self) -> None:
        row = (self._key, self._creates, self._refused, self._window.state())
        self.ctx.put(OLD_RATE, row)


def _move_of(row: tuple[Any, ...]) -> _Move:
    _, frozen, first_create_ms, weight = row
    return _Move(unpack(frozen, Frozen | None), first_create_ms, weight)
