"""The entity that moves an account from V1 to V2; its key is the account's id.

A shell over `cutover`: it does the act of each state, writes the state that follows, and its alarm
goes on from there, whoever crashes. Between freeze and route nothing waits: what fails there is
tried again at once, since all calls of the account wait as well.

An abort is asked of AccountOld, which alone knows whether V2 has taken a create; it is answered
when AccountOld has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from ..gatekeeper.messages import ACCOUNT_KIND, GATEKEEPER_KIND, AccountSnapshot
from ..runtime import limits
from ..runtime.entity import AlarmInfo, Context, DurableObject
from ..runtime.errors import InvalidArgument, SystemFault, ToqueError
from ..runtime.ids import EntityRef
from ..runtime.shard_info import SHARD_INFO_KIND
from ..runtime.tables import Table
from .cutover import (
    Act,
    Cutover,
    Outcome,
    State,
    aborting,
    act_of,
    asked,
    begun,
    due_ms,
    final,
    knows,
    late_abort,
    moved,
    pause_ms,
    troubled,
)
from .messages import (
    ACCOUNT_OLD_KIND,
    MIGRATION_KIND,
    Frozen,
    MigrationPlan,
    MigrationStatus,
    OldStatus,
    RegistryPart,
    old_key,
)
from .planning import Facts, plan_of
from .refusals import AbortRefused, MigrationNotFound, MigrationRefused

MIGRATIONS = Table(
    "migrations",
    (("entity", "TEXT"), ("number", "INTEGER"), ("state", "TEXT"), ("body", "BLOB")),
    key_size=1,
)
"""One row an account: its last migration; `body` is JSON."""

_PROBE_MS = 2_000
_log = logging.getLogger("toque.migration")


class MigrationEnv(NamedTuple):
    """What the wiring gives.

    Attributes:
        shards: the names of all shards.
        v1_max: how many may run on V1.
    """

    shards: list[str]
    v1_max: int = limits.V1_RUNNING_MAX


class Migration(DurableObject):
    """See the module's description."""

    KIND = MIGRATION_KIND
    TABLES = (MIGRATIONS,)

    env: MigrationEnv

    def __init__(self, ctx: Context, env: MigrationEnv) -> None:
        super().__init__(ctx, env)
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        account = ctx.ref.key
        self._old = EntityRef(ACCOUNT_OLD_KIND, old_key(account))
        self._account = EntityRef(ACCOUNT_KIND, account)
        self._gatekeeper = EntityRef(GATEKEEPER_KIND, account)
        self._acts: dict[Act, Callable[[Cutover], Awaitable[tuple[Outcome, Any]]]] = {
            Act.FREEZE: self._freeze,
            Act.ADOPT: self._adopt,
            Act.ROUTE: self._route,
            Act.HEAL: self._heal,
            Act.DRAIN: self._drain,
            Act.RETIRE: self._retire,
            Act.ABANDON: self._abandon,
        }

    # --- handlers ---------------------------------------------------------------------------

    async def plan(self) -> MigrationPlan:
        """What a move would do and what speaks against it; changes nothing."""
        old = await self._status_of_old()
        known = self._cutover()
        if old is None or old.plane != "v1":
            return plan_of(
                Facts(self.ctx.ref.key, old, known, None, None, 0, self.env.v1_max, {}, [])
            )
        silent = await self._silent_shards()
        snapshot: AccountSnapshot = await self._ask(AccountSnapshot, self._old, "snapshot", -1)
        scripts = await self._ask(list[Any], self._old, "list_scripts")
        workflows = snapshot.workflows or []
        queued = {}
        for workflow in workflows:
            counts = await self._ask(dict[str, int], self._old, "counts", workflow.uuid, "")
            queued[workflow.name] = counts.get("queued", 0)
        return plan_of(
            Facts(
                self.ctx.ref.key,
                old,
                known,
                len(workflows),
                len(scripts),
                snapshot.running_max,
                self.env.v1_max,
                queued,
                silent,
            )
        )

    async def start(self, request_id: str, in_ms: int) -> MigrationStatus:
        """Begin a migration, now or after a while.

        Args:
            request_id: the same again is the same migration.
            in_ms: after how long.

        Raises:
            MigrationUnderWay: another is.
            MigrationRefused: something speaks against it.
            RequestIdReused: the request has asked for something else.
            InvalidArgument: `in_ms` is out of range.
        """
        if not 0 <= in_ms <= limits.MIGRATION_START_MAX_MS:
            most = limits.MIGRATION_START_MAX_MS // limits.DAY_MS
            raise InvalidArgument(f"a migration begins now or within {most} days, not {in_ms} ms.")
        known = self._cutover()
        if known is None or begun(known, request_id, in_ms, 0) is not known:
            plan = await self.plan()
            # Others may have begun it meanwhile, or this very request when it came first.
            known, now_ms = self._cutover(), self.ctx.clock.now_ms()
            after = begun(known, request_id, in_ms, now_ms)
            if after is not known:
                self._begin(after, plan, now_ms)
        return await self.status()

    def _begin(self, cutover: Cutover, plan: MigrationPlan, now_ms: int) -> None:
        if plan.objections:
            raise MigrationRefused(
                f"account {self.ctx.ref.key!r} is not moved: {' '.join(plan.objections)}",
                {"objections": plan.objections},
            )
        self._put(cutover)
        self._arm(now_ms)

    async def status(self) -> MigrationStatus:
        """How it stands. Whoever looks has it look too, whenever its alarm is due.

        So what is shown is late by a moment only, and a clock that was set back holds nothing.
        """
        cutover, now_ms = self._cutover(), self.ctx.clock.now_ms()
        if cutover is not None and act_of(cutover, now_ms) is not None:
            self._arm(now_ms)
        old = await self._status_of_old()
        return self._shown(old)

    async def pause(self, request_id: str) -> MigrationStatus:
        """Have it hold where it may: before the freeze, while it heals, drains or is drained.

        As `resume` and `abort` it is done once, however often that request comes.

        Raises:
            MigrationNotFound
        """
        return await self._set_paused(True, request_id)

    async def resume(self, request_id: str) -> MigrationStatus:
        """Have it go on.

        Raises:
            MigrationNotFound
        """
        return await self._set_paused(False, request_id)

    async def abort(self, request_id: str) -> MigrationStatus:
        """Take it back: V1 serves the account again, as if nothing had been.

        Raises:
            MigrationNotFound
            AbortRefused: V2 has taken a create, or does not ask V1 any more.
        """
        async with self._turn:
            cutover = self._known()
            if not knows(cutover, request_id, "abort"):
                now_ms = self.ctx.clock.now_ms()
                self._put(asked(aborting(cutover, now_ms), request_id, "abort"))
                self._arm(now_ms)
                await self._drive()
            after = self._known()
        if after.number == cutover.number and after.state is not State.ABORTED and after.too_late:
            raise late_abort(after)
        return await self.status()

    async def _set_paused(self, paused: bool, request_id: str) -> MigrationStatus:
        cutover = self._known()
        what = "pause" if paused else "resume"
        if not knows(cutover, request_id, what):
            after = msgspec.structs.replace(cutover, paused=paused and not cutover.finished)
            self._put(asked(after, request_id, what))
            self._arm(self.ctx.clock.now_ms())
        return await self.status()

    # --- the drive --------------------------------------------------------------------------

    async def alarm(self, info: AlarmInfo) -> None:
        """Go on from where it is."""
        async with self._turn:
            await self._drive()

    async def _drive(self) -> None:
        """Do acts until one has to be waited for; the alarm says when to go on."""
        while True:
            now_ms = self.ctx.clock.now_ms()
            cutover = self._cutover()
            act = None if cutover is None else act_of(cutover, now_ms)
            if cutover is None or act is None:
                if cutover is not None:
                    self._arm(now_ms)
                return
            try:
                outcome, found = await self._acts[act](cutover)
            except ToqueError as error:
                self._failed(cutover, error)
                return
            now = self._known()  # a pause may have been asked for meanwhile
            now_ms = self.ctx.clock.now_ms()
            after = moved(now, outcome, now_ms, found)
            if after != now:
                self._put(after)
            if outcome is Outcome.AGAIN:
                self.ctx.set_alarm(now_ms + pause_ms(after, act, now_ms))
                return

    def _failed(self, cutover: Cutover, error: ToqueError) -> None:
        """An act failed: it is done again after a while, until it is not."""
        if not isinstance(error, SystemFault):
            _log.error("the migration of %s fails while %s", self.ctx.ref.key, cutover.state,
                       exc_info=error)  # fmt: skip
        now = self._known()
        self._put(troubled(now, f"{type(error).__name__}: {error}"))
        self.ctx.set_alarm(self.ctx.clock.now_ms() + limits.MIGRATION_AGAIN_MS)

    async def _freeze(self, cutover: Cutover) -> tuple[Outcome, Any]:
        return Outcome.DONE, await self._ask(Frozen, self._old, "freeze", cutover.id)

    async def _adopt(self, cutover: Cutover) -> tuple[Outcome, Any]:
        """The lease before all: nobody else gets a slot before V1's are counted."""
        await self._ask(None, self._gatekeeper, "adopt", cutover.id, cutover.frozen)
        after: str | None = None
        while True:
            part: RegistryPart = await self._ask(
                RegistryPart, self._old, "registry_part", cutover.id, after
            )
            await self._ask(None, self._account, "adopt_part", cutover.id, part)
            after = part.after
            if after is None:
                break
        await self._ask(None, self._account, "adopt", cutover.id)
        return Outcome.DONE, None

    async def _route(self, cutover: Cutover) -> tuple[Outcome, Any]:
        await self._ask(None, self._old, "route", cutover.id)
        return Outcome.DONE, None

    async def _heal(self, cutover: Cutover) -> tuple[Outcome, Any]:
        if await self._ask(int, self._old, "heal", cutover.id):
            return Outcome.AGAIN, None
        await self._ask(None, self._old, "healed", cutover.id)
        await self._ask(None, self._account, "healed", cutover.id)
        return Outcome.DONE, None

    async def _drain(self, cutover: Cutover) -> tuple[Outcome, Any]:
        old: OldStatus = await self._ask(OldStatus, self._old, "status")
        live = old.unborn + old.queued + old.holding + old.waiting + old.paused
        return (Outcome.AGAIN if live else Outcome.DONE), None

    async def _retire(self, cutover: Cutover) -> tuple[Outcome, Any]:
        if not await self._ask(bool, self._old, "retire", cutover.id):
            return Outcome.AGAIN, None
        await self._ask(None, self._account, "retired", cutover.id)
        return Outcome.DONE, None

    async def _abandon(self, cutover: Cutover) -> tuple[Outcome, Any]:
        """V1 first: it decides, and from then on nobody on V2 is asked any more."""
        try:
            await self._ask(None, self._old, "abort", cutover.id)
        except AbortRefused as refused:
            return Outcome.REFUSED, refused
        await self._ask(None, self._account, "abandon", cutover.id)
        await self._ask(None, self._gatekeeper, "abandon", cutover.id)
        return Outcome.DONE, None

    # --- calls ------------------------------------------------------------------------------

    async def _ask(self, expected: Any, ref: EntityRef, method: str, *args: Any) -> Any:
        """A call, repeated for a while if its shard does not answer. All of them may come twice."""
        until = self._loop.time() + limits.MIGRATION_PATIENCE_MS / 1000
        while True:
            try:
                raw = await self.ctx.call(
                    ref, method, *args, timeout_ms=limits.CONTROL_CALL_TIMEOUT_MS
                )
            except SystemFault:
                if self._loop.time() >= until:
                    raise
                await asyncio.sleep(limits.MIGRATION_RETRY_MS / 1000)
            else:
                return raw if expected is None else msgspec.convert(raw, expected)

    async def _status_of_old(self) -> OldStatus | None:
        try:
            raw = await self.ctx.call(self._old, "status", timeout_ms=_PROBE_MS)
        except SystemFault:
            return None
        return msgspec.convert(raw, OldStatus)

    async def _silent_shards(self) -> list[str]:
        """Those that do not answer, or can't commit."""
        probes = [
            self.ctx.call(EntityRef(SHARD_INFO_KIND, shard), "probe", timeout_ms=_PROBE_MS)
            for shard in self.env.shards
        ]
        found = await asyncio.gather(*probes, return_exceptions=True)
        return [
            shard
            for shard, answer in zip(self.env.shards, found, strict=True)
            if isinstance(answer, BaseException)
        ]

    # --- the row ----------------------------------------------------------------------------

    def _cutover(self) -> Cutover | None:
        row = self.ctx.get(MIGRATIONS, (self.ctx.ref.key,))
        return None if row is None else msgspec.json.decode(row[3], type=Cutover)

    def _known(self) -> Cutover:
        cutover = self._cutover()
        if cutover is None:
            raise MigrationNotFound(
                f"account {self.ctx.ref.key!r} is not being moved. 'toque migrate start "
                f"{self.ctx.ref.key}' begins it.",
                {"account": self.ctx.ref.key},
            )
        return cutover

    def _put(self, cutover: Cutover) -> None:
        body = msgspec.json.encode(cutover)
        self.ctx.put(MIGRATIONS, (self.ctx.ref.key, cutover.number, cutover.state.value, body))

    def _arm(self, now_ms: int) -> None:
        due = due_ms(self._known(), now_ms)
        if due is not None:
            self.ctx.set_alarm(due)

    def _shown(self, old: OldStatus | None) -> MigrationStatus:
        account, plane = self.ctx.ref.key, "" if old is None else old.plane
        cutover = self._cutover()
        if cutover is None:
            return MigrationStatus(
                account, "", "none", plane, False, False, 0, [], None, old, "", ""
            )
        return MigrationStatus(
            account,
            cutover.id,
            cutover.state.value,
            plane,
            cutover.paused,
            cutover.holds,
            cutover.not_before_ms,
            cutover.log,
            cutover.frozen,
            old,
            cutover.trouble,
            final(cutover, old),
        )
