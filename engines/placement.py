"""Where an instance's code runs: in the shard's process, or in a worker.

In the shard's process only code of the *trusted* account (the one that the process belongs to)
runs, and of that nothing that asked for a process of its own (`placement = "actor"`) or has shown
that it needs one. Code of every other account runs in workers, one per account and code, so that
no interpreter ever holds the code of two accounts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..runtime import limits
from ..runtime.ids import split_engine_key
from ..runtime.notes import Blame, Notes
from ..runtime.payload_codec import Carried, Seal
from .code_host import InProcessCodeHost
from .run_port import Plan, Run, RunHooks
from .worker_host import WorkerHost, WorkerSettings
from .workflow import ACTOR


class PlacedCodeHost:
    """See the module's description.

    Args:
        inside: runs the trusted account's code in this process.
        trusted: that account; None: nobody's code runs here.
        workers: how workers are started.
        bundle: where they find the code.
        notes: where the shard notes whose code runs; removed at a close in good order.
        blamed: whose code was running when the shard last ended without being closed.
    """

    def __init__(
        self,
        inside: InProcessCodeHost,
        *,
        trusted: str | None,
        workers: WorkerSettings,
        bundle: dict[str, Any],
        blamed: Iterable[Blame] = (),
        notes: Notes | None = None,
    ) -> None:
        self._notes = notes
        self._inside = inside
        self._trusted = trusted
        self._settings = workers
        self._bundle = bundle
        self._shared: dict[tuple[str, str], WorkerHost] = {}
        self._hosts: set[WorkerHost] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._suspicion = Counter[str]()
        for blame in blamed:
            self._suspicion[blame.key] += limits.SUSPICION_MAX if blame.on_loop else 1

    def open(self, plan: Plan, hooks: RunHooks) -> Run:
        account = split_engine_key(plan.key)[0]
        whose = None if account == self._trusted else account
        definition = self._inside.definition(plan.workflow)
        codecs = (hooks.seal or Seal(account)).carried()
        if plan.is_apart or definition.placement == ACTOR:
            options = dict(definition.ray_options)
            host = self._new_host("i", options, account=whose, codecs=codecs, is_dedicated=True)
        elif whose is None:
            return self._inside.open(plan, hooks)
        else:
            host = self._shared_host(account, plan.code_hash, codecs)
        return host.open(plan, hooks)

    def suspicion(self, key: str) -> int:
        return self._suspicion.pop(key, 0)

    def statistics(self) -> dict[str, Any]:
        """Counters, plain data."""
        return {
            "workers": len(self._hosts),
            "workers_dedicated": sum(host.is_dedicated for host in self._hosts),
            **self._inside.statistics(),
        }

    async def aclose(self) -> None:
        """End all workers, and return when they are gone."""
        for host in list(self._hosts):
            host.end("the shard closes")
        self._inside.close()
        await asyncio.gather(*self._closing)
        if self._notes is not None:
            self._notes.close()

    # --- workers ----------------------------------------------------------------------------

    def _shared_host(self, account: str, code_hash: str, codecs: Carried) -> WorkerHost:
        key = account, code_hash
        host = self._shared.get(key)
        if host is None:
            host = self._shared[key] = self._new_host(
                "a", {}, account=account, codecs=codecs, is_dedicated=False
            )
        return host

    def _new_host(
        self,
        kind: str,
        options: dict[str, Any],
        *,
        account: str | None,
        codecs: Carried,
        is_dedicated: bool,
    ) -> WorkerHost:
        self._numbers += 1
        host = WorkerHost(
            self._settings,
            f"{self._settings.shard}.{kind}{self._numbers}",
            self._bundle,
            options,
            account=account,
            codecs=codecs,
            is_dedicated=is_dedicated,
            ended=self._host_ended,
        )
        self._hosts.add(host)
        return host

    def _host_ended(self, host: WorkerHost) -> None:
        self._hosts.discard(host)
        if host.closing is not None:
            self._closing.add(host.closing)
            host.closing.add_done_callback(self._closing.discard)
        for key, known in list(self._shared.items()):
            if known is host:
                del self._shared[key]
