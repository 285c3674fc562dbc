"""All figures of one shard, gathered when somebody asks: plain data for `metrics`.

Counters are plain attributes that their owners raise; here they are only read. What SousChefs
keep is read from their rows, on the reader's connection, so that those out of memory count too;
what only memory knows is added for the live ones. Every list is bounded.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ..engines.code_host import CodeHost
from ..engines.env import EngineEnv
from ..engines.ports import SOUSCHEF_KIND
from ..gatekeeper.gatekeeper import ACCOUNT_ROW, Gatekeeper
from ..gatekeeper.messages import GATEKEEPER_KIND
from ..runtime import limits
from ..runtime.entity import DurableObject
from ..runtime.host import Host
from ..runtime.ids import ACCOUNT_OLD_KIND
from ..runtime.process import ProcessMeter
from ..runtime.store_sqlite import SqliteStore
from ..runtime.tables import Query
from ..souschef.env import TOTALS, SousChefEnv
from ..souschef.souschef import SousChef

Kind = TypeVar("Kind", bound=DurableObject)

_LANES = Query(
    "figures of souschefs",
    "SELECT entity, awakened, fresh, waiting, paused, ended FROM souschef_state "
    "ORDER BY entity LIMIT ?",
)
_LEASES = Query(
    "leases by account",
    "SELECT entity, count(*), sum(ledger) FROM gatekeeper_leases WHERE gone = 0 "
    "GROUP BY entity ORDER BY entity LIMIT ?",
)
_LIMITS = Query(
    "limits of accounts",
    f"SELECT entity, running_max FROM gatekeeper_limits WHERE workflow = '{ACCOUNT_ROW}' "
    "ORDER BY entity LIMIT ?",
)
_NAMES = Query(
    "names of workflows",
    "SELECT entity, uuid, name, created_ms FROM account_workflows ORDER BY entity, name LIMIT ?",
)


_NOT_ON_V2 = Query(
    "accounts without a Gatekeeper",
    "SELECT entity FROM gatekeeper_planes WHERE plane <> 'v2' ORDER BY entity LIMIT ?",
)
_ON_V1 = Query(
    "accounts on V1",
    "SELECT entity FROM account_old_planes WHERE plane <> 'v2' ORDER BY entity LIMIT ?",
)


class ShardFigures:
    """Reports on one shard; see `runtime.shard_info.Report`.

    Args:
        host, store, code_host: the shard's.
        process: figures of the process; None: they are not wanted.
        engines: what Engines count in, on a data shard.
        souschefs: what SousChefs count in, on a control shard.
        running_max: the limit of an account that has set none.
    """

    def __init__(
        self,
        host: Host,
        store: SqliteStore,
        code_host: CodeHost,
        process: ProcessMeter | None,
        engines: EngineEnv | None,
        souschefs: SousChefEnv,
        running_max: int,
    ) -> None:
        self._host = host
        self._store = store
        self._code_host = code_host
        self._process = process
        self._engines = engines
        self._souschefs = souschefs
        self._running_max = running_max

    def statistics(self) -> dict[str, Any]:
        """A few counters."""
        return {**self._host.statistics(), **self._code_host.statistics()}

    async def figures(self) -> dict[str, Any]:
        """All figures."""
        found: dict[str, Any] = {
            "counters": self.statistics(),
            "epoch": self._store.epoch,
            "commit_rows": self._store.commit_rows.figures(),
            "commit_us": self._store.commit_us.figures(),
            "calls_per_frame": self._host.router.calls_per_frame.figures(),
        }
        if self._process is not None:
            found["process"] = self._process.figures()
        if self._engines is not None:
            found["starts_ms"] = self._engines.starts_ms.figures()
            found["reports"] = self._engines.reporter.statistics()
        else:
            found |= await self._control()
        return found

    async def _control(self) -> dict[str, Any]:
        most = limits.METRICS_ROWS_MAX
        query = self._store.query
        lanes = await query(_LANES, (most,))
        live = {
            chef.ctx.ref.key: chef
            for kind in (SOUSCHEF_KIND, ACCOUNT_OLD_KIND)
            for chef in self._live(SousChef, kind)
        }
        keepers = {keeper.ctx.ref.key: keeper for keeper in self._live(Gatekeeper, GATEKEEPER_KIND)}
        leases = {row[0]: row[1:] for row in await query(_LEASES, (most,))}
        not_here = {row[0] for row in await query(_NOT_ON_V2, (most,))}
        set_limits: dict[str, int] = dict(await query(_LIMITS, (most,)))
        names = [(key.split("/", 1)[0], *rest) for key, *rest in await query(_NAMES, (most,))]
        accounts = [
            (
                account,
                set_limits.get(account, self._running_max),
                *leases.get(account, (0, 0)),
                *_demand(keepers.get(account)),
            )
            for account in sorted({*leases, *set_limits, *keepers} - not_here)[:most]
        ]
        accounts += await self._of_v1(live)
        totals = self._souschefs.totals.copy()
        for chef in live.values():
            chef.count_into(totals)
        return {
            "souschefs": [_lane(row, live.get(row[0])) for row in lanes],
            "accounts": accounts,
            "names": names,
            "truncated": max(len(lanes), len(leases), len(names)) >= most,
            "totals": {name: getattr(totals, name) for name in TOTALS},
            "late_ms": totals.late_ms.figures(),
        }

    async def _of_v1(self, live: dict[str, SousChef]) -> list[tuple[Any, ...]]:
        """Accounts on V1: each has one lease, its own."""
        keys = [row[0] for row in await self._store.query(_ON_V1, (limits.METRICS_ROWS_MAX,))]
        told = ((key, live[key].statistics()) for key in keys if key in live)
        return [
            (
                key.split("/", 1)[0],
                said.target,
                1,
                said.target,
                said.holding + said.awakened + said.fresh,
                0,
            )
            for key, said in told
        ]

    def _live(self, cls: type[Kind], kind: str) -> list[Kind]:
        return [entity for entity in self._host.live(kind) if isinstance(entity, cls)]


def _lane(row: tuple[Any, ...], live: SousChef | None) -> dict[str, Any]:
    """One SousChef: from its row, or from memory if it is there."""
    entity, awakened, fresh, waiting, paused, ended = row
    told = None if live is None else live.statistics()
    return {
        "souschef": entity,
        "queued": awakened + fresh if told is None else told.awakened + told.fresh,
        "running": 0 if told is None else told.holding,
        "waiting": waiting if told is None else told.waiting,
        "paused": paused if told is None else told.paused,
        "ended": msgspec.json.decode(ended, type=dict[str, int]) if told is None else told.ended,
        "queue_age_ms": 0 if told is None else told.oldest_queued_ms,
        "target": 0 if told is None else told.target,
    }


def _demand(keeper: Gatekeeper | None) -> list[int]:
    """Slots wanted; calls since it was activated."""
    told = None if keeper is None else keeper.statistics()
    return [0, 0] if told is None else [told.wanted, told.calls]
