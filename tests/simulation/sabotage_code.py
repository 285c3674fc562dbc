"""Deliberate bugs in what becomes of code that is wrong, is missing or ends; see `sabotage`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toque.engines import life, outcomes
from toque.engines.claiming import Claiming
from toque.engines.engine import Engine
from toque.engines.failures import record_of
from toque.engines.life import InstanceLife
from toque.engines.status import HOLDS_SLOT
from toque.engines.worker_host import WorkerHost

Bug = tuple[Any, str, Any]


def _unfit_taken() -> Bug:
    """What `run` returns need not fit its annotation."""
    return outcomes, "_check_fits", lambda output, expected, what: None


def _divergence_unseen() -> Bug:
    """A run that takes another way than its journal says goes on with it."""

    def go_on(self: Any, found: str, recorded: Any) -> None:
        self._queue.clear()

    return Claiming, "_diverged", go_on


def _end_swallowed() -> Bug:
    """A run that has continued as new and caught that goes on."""
    return Claiming, "_has_swallowed_its_end", lambda self: False


def _crashes_forgiven() -> Bug:
    """An instance that ends its process each time is given another one for ever."""
    return life.limits, "INSTANCE_DEATHS_MAX", 1_000_000


def _lost_run_forgotten() -> Bug:
    """An Engine does nothing about a run that is lost with its worker."""
    return InstanceLife, "_go_on_after", lambda self, error: None


def _missing_code_fails() -> Bug:
    """An instance whose code can't be had just now has failed."""

    def give_up(self: Any, error: Exception, *, tries: int = 0) -> None:
        self._finish(self.ctx.clock.now_ms(), "fail", None, record_of(error))

    return InstanceLife, "_cannot_run", give_up


def _frames_overtake() -> Bug:
    """What is told a worker once its link is up goes before what has waited for it."""

    def send(self: Any, frame: bytes) -> None:
        if self._link is not None:
            self._link(frame)
        elif not self._is_over:
            self._waiting.append(frame)

    return WorkerHost, "_send", send


def _grant_unwritten() -> Bug:
    """What becomes of an instance that is granted once more after a reset is not written."""
    whole = Engine.grant

    def grant(self: Any, run_id: str, turn: int) -> bool:
        instance = self._instance
        asked = instance is not None and (instance.run_id, instance.turn) == (run_id, turn)
        if not asked or instance.status == "queued":
            return whole(self, run_id, turn)
        self._keep_running()
        return instance.status in HOLDS_SLOT

    return Engine, "grant", grant


CODE_BUGS: dict[str, tuple[Callable[[], Bug], ...]] = {
    "unfit_taken": (_unfit_taken,),
    "divergence_unseen": (_divergence_unseen,),
    "end_swallowed": (_end_swallowed,),
    "crashes_forgiven": (_crashes_forgiven,),
    "lost_run_forgotten": (_lost_run_forgotten,),
    "missing_code_fails": (_missing_code_fails,),
    "frames_overtake": (_frames_overtake,),
    "grant_unwritten": (_grant_unwritten,),
}
