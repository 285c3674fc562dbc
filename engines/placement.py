"""Where an instance's code runs: in the shard's process, or in a worker.

In the shard's process only code of the *trusted* account (the one that the process belongs to)
runs, and of that only what was loaded with the process, and nothing that asked for a process of
its own (`placement = "actor"`) or has shown that it needs one. All else runs in workers, one per
account and code, so that no interpreter ever holds the code of two accounts, or of two versions.

An instance runs on the code that it began with: what the process holds if that has the same hash,
else the stored bundle of that hash. If there is none it waits, holding its slot, and is tried
again every few seconds (`CodeMissing` says so where it is shown): storing the bundle heals it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..runtime import limits
from ..runtime.errors import WorkflowLoadError
from ..runtime.ids import split_engine_key
from ..runtime.notes import Blame, Notes
from ..runtime.payload_codec import Carried, Seal
from .broken_code import BrokenCode, Code
from .bundle import bundle_of_stored
from .bundle_store import BundleStore, Defined, code_missing
from .code_host import InProcessCodeHost
from .run_port import Plan, Run, RunHooks
from .worker_host import WorkerHost, WorkerSettings
from .workflow import ACTOR, WorkflowDefinition


class PlacedCodeHost:
    """See the module's description.

    Args:
        inside: runs the trusted account's code in this process.
        trusted: that account; None: nobody's code runs here.
        workers: how workers are started.
        bundle: where they find the code that this process holds.
        store: keeps the bundles of all other code; None: there is none.
        is_exact: code of another hash is no substitute. Without it an instance whose code is
            nowhere goes on with what the process holds under its name.
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
        store: BundleStore | None = None,
        is_exact: bool = False,
        blamed: Iterable[Blame] = (),
        notes: Notes | None = None,
    ) -> None:
        self._store = store
        self._is_exact = is_exact
        self._notes = notes
        self._inside = inside
        self._trusted = trusted
        self._settings = workers
        self._bundle = bundle
        self._shared: dict[tuple[str, str], WorkerHost] = {}
        self._hosts: set[WorkerHost] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._broken = BrokenCode()
        self._suspicion = Counter[str]()
        for blame in blamed:
            self._suspicion[blame.key] += limits.SUSPICION_MAX if blame.on_loop else 1

    def open(self, plan: Plan, hooks: RunHooks) -> Run:
        account = split_engine_key(plan.key)[0]
        whose = None if account == self._trusted else account
        code, bundle = self._code_of(plan, whose)
        is_apart = plan.is_apart or code.placement == ACTOR
        if whose is None and bundle is self._bundle and not is_apart:
            return self._inside.open(plan, hooks)
        codecs = (hooks.seal or Seal(account)).carried()
        key = account, plan.code_hash
        if is_apart:
            self._broken.check(key, self._settings.loop.time())
            options = dict(code.ray_options)
            host = self._new_host(
                "i", bundle, options, account=whose, codecs=codecs, is_dedicated=True, code=key
            )
        else:
            host = self._shared_host(key, bundle, whose, codecs)
        return host.open(plan, hooks)

    def _code_of(
        self, plan: Plan, whose: str | None
    ) -> tuple[WorkflowDefinition | Defined, dict[str, Any]]:
        """The code of an instance, and where a worker finds it."""
        try:
            held = self._inside.definition(plan.workflow, plan.class_name)
        except WorkflowLoadError:
            held = None
        if held is not None and held.code_hash == plan.code_hash:
            return held, self._bundle
        manifest = self._store.manifest(plan.code_hash) if self._store else None
        if self._store is not None and manifest is not None:
            stored = manifest.find(plan.workflow, plan.class_name)
            if stored is None:
                raise WorkflowLoadError(
                    f"the code {plan.code_hash:.12} has no class or function "
                    f"{plan.class_name!r} for workflow {plan.workflow!r}."
                )
            path = sys.path[:] if whose is None else []
            return stored, bundle_of_stored(plan.code_hash, str(self._store.folder), path)
        if self._is_exact or whose is not None:
            raise code_missing(plan.code_hash, "is not stored here")
        return self._inside.definition(plan.workflow, plan.class_name), self._bundle

    def suspicion(self, key: str) -> int:
        return self._suspicion.pop(key, 0)

    def statistics(self) -> dict[str, Any]:
        """Counters, plain data."""
        return {
            "workers": len(self._hosts),
            "workers_dedicated": sum(host.is_dedicated for host in self._hosts),
            "code_broken": self._broken.told(),
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

    def _shared_host(
        self, key: tuple[str, str], bundle: dict[str, Any], whose: str | None, codecs: Carried
    ) -> WorkerHost:
        host = self._shared.get(key)
        if host is None:
            self._broken.check(key, self._settings.loop.time())
            host = self._shared[key] = self._new_host(
                "a", bundle, {}, account=whose, codecs=codecs, is_dedicated=False, code=key
            )
        return host

    def _new_host(
        self,
        kind: str,
        bundle: dict[str, Any],
        options: dict[str, Any],
        *,
        account: str | None,
        codecs: Carried,
        is_dedicated: bool,
        code: Code,
    ) -> WorkerHost:
        self._numbers += 1
        host = WorkerHost(
            self._settings,
            f"{self._settings.shard}.{kind}{self._numbers}",
            bundle,
            options,
            account=account,
            codecs=codecs,
            is_dedicated=is_dedicated,
            code=code,
            broken=self._broken,
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
