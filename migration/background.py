"""Runs what upgrades have left to do after deploy, on an open shard, while its entities live.

Each turn looks at some rows and writes those that change, and how far it has come, in one commit;
the next turn begins when that is on disk. So it never has more than one batch under way, ends with
its shard, and goes on from its note when the shard is opened again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..runtime import limits
from ..runtime.codec import pack, unpack
from ..runtime.errors import Overloaded
from ..runtime.store import Store
from ..runtime.tables import Change, Key
from ..runtime.upgrades import PENDING, Rows, StoreUpgrade

_log = logging.getLogger("toque.migration")
_OWNER = "upgrade"


class Background:
    """The background parts of a shard's upgrades.

    Args:
        store: the shard's store, open.
        upgrades: all that there are.
        loop: the shard's event loop.
    """

    def __init__(
        self, store: Store, upgrades: Sequence[StoreUpgrade], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._store = store
        self._parts = {upgrade.to: upgrade for upgrade in upgrades}
        self._loop = loop
        self._timer: asyncio.Handle | None = None
        self._closed = False

    def start(self) -> None:
        """Begin, or go on, if there is anything to do."""
        self._turn_soon()

    def close(self) -> None:
        """Do nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _turn_soon(self, delay_ms: int = 0) -> None:
        if not self._closed:
            self._timer = self._loop.call_later(delay_ms / 1000, self._turn)

    def _turn(self) -> None:
        if self._closed or self._store.broken is not None:
            return
        pending = self._store.scan(PENDING, limit=1)
        if not pending:
            return
        number, progress = pending[0]
        upgrade = self._parts[number]
        assert upgrade.after is not None
        after = unpack(progress, tuple) if progress else None
        changes, last = changes_of(self._store, upgrade.after, after)
        note: Change = (PENDING, (number,), None if last is None else (number, pack(last)))
        try:
            seq = self._store.write_all(_OWNER, [*changes, note])
        except Overloaded:
            self._turn_soon(limits.UPGRADE_RETRY_MS)
            return
        self._store.when_durable(seq, self._durable(upgrade, last is None), _OWNER)
        _log.debug("upgrade to format %d: %d rows changed", number, len(changes))

    def _durable(
        self, upgrade: StoreUpgrade, is_last: bool
    ) -> Callable[[BaseException | None], None]:
        def told(error: BaseException | None) -> None:
            if error is not None:
                _log.warning("the upgrade to format %d did not go on: %s", upgrade.to, error)
            elif is_last:
                _log.info("the upgrade to format %d has ended: %s", upgrade.to, upgrade.what)
            self._turn_soon(0 if error is None else limits.UPGRADE_RETRY_MS)

        return told


def changes_of(store: Store, rows: Rows, after: Key | None) -> tuple[list[Change], Key | None]:
    """What changes among the next rows, and the last one's key; None: there are no more."""
    page = store.scan(rows.table, after=after, limit=rows.batch)
    changes: list[Change] = []
    for row in page:
        changed = rows.change(row)
        if changed is not None:
            changes.append((rows.table, rows.table.key_of(row), changed))
    return changes, rows.table.key_of(page[-1]) if len(page) == rows.batch else None
