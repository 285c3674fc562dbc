"""Ends all instances of a workflow, in the background and over crashes.

One entity per workflow's uuid, keyed `account/uuid`. It walks the index of each data shard in
turn, a batch a step, and asks that shard to terminate or delete what it finds; where it stands is
a row, and its alarm goes on from there, whoever crashes. A step is repeated without harm: each
instance takes a request id once.

* `terminate` passes each shard once: what is created behind it is left. Who is queued on V1 without
  an Engine is in no such index: of an account that heals they get their Engines first.
* `delete` is for a workflow that is gone. Front ends may know it a little longer and create more,
  so it passes again until a pass finds nothing and it is too late for any create.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ..engines.ports import ENGINE_SHARD_KIND, ClearPage
from ..gatekeeper.messages import CLEARING_KIND
from ..gatekeeper.planes import WrongControlPlane
from ..runtime import limits
from ..runtime.entity import AlarmInfo, Context, DurableObject
from ..runtime.ids import EntityRef, old_account
from ..runtime.tables import Table

CLEARINGS = Table(
    "clearings",
    (
        ("entity", "TEXT"),
        ("job", "TEXT"),
        ("how", "TEXT"),
        ("statuses", "TEXT"),
        ("begun_ms", "INTEGER"),
        ("shard", "INTEGER"),
        ("after_ms", "INTEGER"),
        ("after_id", "TEXT"),
        ("found", "INTEGER"),
    ),
    key_size=1,
)
How = Literal["terminate", "delete"]
_API = "api"
_UNBORN = -1
_QUEUED = "queued"


class ClearingEnv(NamedTuple):
    """What the wiring gives: the names of all data shards."""

    data_shards: list[str]


class _Job(NamedTuple):
    """A row: `shard` is the one it is at, `after_*` how far, `found` what this pass has found.

    `shard` is _UNBORN before the first, while those without an Engine get one.

    `job` begins with what asked for it and a colon, if that was not the API.
    """

    entity: str
    job: str
    how: str
    statuses: str
    begun_ms: int
    shard: int = 0
    after_ms: int = -1
    after_id: str = ""
    found: int = 0

    @property
    def source(self) -> str:
        """What asked for it."""
        source, colon, _ = self.job.partition(":")
        return source if colon else _API


class Clearing(DurableObject):
    """See the module's description."""

    KIND = CLEARING_KIND
    TABLES = (CLEARINGS,)

    env: ClearingEnv

    def __init__(self, ctx: Context, env: ClearingEnv) -> None:
        super().__init__(ctx, env)

    def begin(self, how: How, statuses: list[str], job: str, source: str = _API) -> bool:
        """Begin, unless another is under way; False: it is. A deletion takes another's place.

        Args:
            how: what is done with each instance.
            statuses: those in which an instance is taken; none: all.
            job: names it; the same again is the same.
            source: what asks for it, as of a create; instances that it ends tell it.
        """
        job = job if source == _API else f"{source}:{job}"
        known = self._job()
        if known is not None and known.job == job:
            return True
        if known is not None and (how == "terminate" or known.how == "delete"):
            return False
        now_ms = self.ctx.clock.now_ms()
        of_unborn = how == "terminate" and (not statuses or _QUEUED in statuses)
        first = _UNBORN if of_unborn else 0
        self._put(_Job(self.ctx.ref.key, job, how, ",".join(statuses), now_ms, first))
        self.ctx.set_alarm(now_ms)
        return True

    def is_running(self) -> bool:
        """Whether it is under way."""
        return self._job() is not None

    async def alarm(self, info: AlarmInfo) -> None:
        """Do the next batch. If its shard does not answer the host fires again, later."""
        job = self._job()
        if job is None:
            return
        account, _, uuid = self.ctx.ref.key.partition("/")
        if job.shard == _UNBORN:
            await self._bear(job, account, uuid)
            return
        raw = await self.ctx.call(
            EntityRef(ENGINE_SHARD_KIND, self.env.data_shards[job.shard]),
            "clear",
            account,
            uuid,
            job.how,
            [status for status in job.statuses.split(",") if status],
            (job.after_ms, job.after_id) if job.after_ms >= 0 else None,
            f"clear-{job.job}",
            job.source,
            timeout_ms=limits.REQUEST_ATTEMPT_MS,
        )
        page = msgspec.convert(raw, ClearPage)
        if self._job() == job:  # else another one began meanwhile
            self._go_on(job, page)

    async def _bear(self, job: _Job, account: str, uuid: str) -> None:
        """Have the next without an Engine get one, until there are none."""
        try:
            old = old_account(account)
            left = await self.ctx.call(old, "bear", uuid, timeout_ms=limits.REQUEST_ATTEMPT_MS)
        except WrongControlPlane:  # it moves just now
            left = 1
        if self._job() != job:
            return
        now_ms = self.ctx.clock.now_ms()
        if not left:
            self._put(job._replace(shard=0))
        self.ctx.set_alarm(now_ms + limits.CLEARING_AGAIN_MS if left else now_ms)

    def _go_on(self, job: _Job, page: ClearPage) -> None:
        now_ms = self.ctx.clock.now_ms()
        found = job.found + page.found
        if page.after is not None:
            after_ms, after_id = page.after
            self._put(job._replace(after_ms=after_ms, after_id=after_id, found=found))
        elif job.shard + 1 < len(self.env.data_shards):
            self._put(job._replace(shard=job.shard + 1, after_ms=-1, after_id="", found=found))
        else:
            self._passed(job, found, now_ms)
            return
        self.ctx.set_alarm(now_ms)

    def _passed(self, job: _Job, found: int, now_ms: int) -> None:
        """All shards have been passed."""
        late_ms = job.begun_ms + limits.CLEARING_LINGER_MS
        if job.how == "terminate" or (not found and now_ms >= late_ms):
            self.ctx.delete(CLEARINGS, (self.ctx.ref.key,))
            self.ctx.evict()
            return
        self._put(job._replace(shard=0, after_ms=-1, after_id="", found=0))
        pause_ms = limits.CLEARING_AGAIN_MS if found else max(0, late_ms - now_ms)
        self.ctx.set_alarm(now_ms + pause_ms)

    def _job(self) -> _Job | None:
        row = self.ctx.get(CLEARINGS, (self.ctx.ref.key,))
        return None if row is None else _Job(*row)

    def _put(self, job: _Job) -> None:
        self.ctx.put(CLEARINGS, tuple(job))
