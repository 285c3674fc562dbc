"""Versions of a workflow: what was deployed when, and the graph of each one's code.

Versions come from the Account, newest first; it tells the newest `SCAN_ROWS_MAX`. The graphs of
code that was deployed lie beside its bundle; others are drawn from the source, if that can be had
here (see `Sources`), in a process of their own. They are kept: a version's code never changes.
Without source a version has no graph, and all else works.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ..gatekeeper.messages import ACCOUNT_KIND, Settings, VersionRecord, WorkflowRecord
from ..gatekeeper.settings import NOTHING_SET
from ..runtime import limits
from ..runtime.errors import VersionNotFound
from ..runtime.ids import EntityRef
from .calls import Caller
from .graph_child import draw_graphs, read_graphs
from .listing import ListQuery

Files = Mapping[str, str]
Sources = Callable[[str, str], Awaitable[Files | None]]
"""`sources(account, code_hash)` gives the texts of a version's code by name; None: not here."""
Graphs = Callable[[str], Awaitable[Mapping[str, dict[str, Any]] | None]]
"""`graphs(code_hash)` gives the graphs of stored code by class; None: it is not stored."""


async def no_graphs(code_hash: str) -> None:
    """No code is stored."""


async def no_sources(account: str, code_hash: str) -> Files | None:
    """No source is at hand."""
    return None


class VersionInfo(msgspec.Struct, frozen=True):
    """A version, whose it is, and the graph of its code; None: there is none.

    `settings` are the workflow's own, as they are now: they hold for all its versions.
    """

    record: VersionRecord
    workflow: WorkflowRecord
    graph: dict[str, Any] | None
    settings: Settings = NOTHING_SET


class Versions:
    """Asks for versions.

    Args:
        caller: for calls to Accounts.
        find_workflow: gives a workflow's record, or raises `WorkflowNotFound`.
        settings_of: gives a workflow's settings, by account and the uuid in that record.
    """

    def __init__(
        self,
        caller: Caller,
        find_workflow: Callable[[str, str], Awaitable[WorkflowRecord]],
        settings_of: Callable[[str, str], Settings],
    ) -> None:
        self.sources: Sources = no_sources
        self.graphs: Graphs = no_graphs
        self._drawing = asyncio.Lock()
        self._caller = caller
        self._find_workflow = find_workflow
        self._settings_of = settings_of
        self._graphs: OrderedDict[tuple[str, str, str], dict[str, Any] | None] = OrderedDict()

    async def page(
        self, account: str, workflow: str, *, page: int, per_page: int
    ) -> tuple[list[VersionInfo], int]:
        """A page of a workflow's versions, newest first, and how many there are in all."""
        ListQuery(page=page, per_page=per_page).check()
        record, versions = await self._newest_first(account, workflow)
        shown = versions[(page - 1) * per_page : page * per_page]
        return [await self._info(account, record, version) for version in shown], len(versions)

    async def get(self, account: str, workflow: str, version_id: str) -> VersionInfo:
        """One version, or `VersionNotFound`."""
        record, versions = await self._newest_first(account, workflow)
        for version in versions:
            if version.version_id == version_id:
                return await self._info(account, record, version)
        raise VersionNotFound(
            f"workflow {workflow!r} has no version {version_id!r:.80}; ask for its versions.",
            {"workflow": workflow},
        )

    async def _newest_first(
        self, account: str, workflow: str
    ) -> tuple[WorkflowRecord, list[VersionRecord]]:
        record = await self._find_workflow(account, workflow)
        ref = EntityRef(ACCOUNT_KIND, account)
        versions: list[VersionRecord] = await self._caller.call(
            list[VersionRecord], self._caller.deadline(), ref, "list_versions", workflow
        )
        return record, versions[::-1]

    async def _info(
        self, account: str, record: WorkflowRecord, version: VersionRecord
    ) -> VersionInfo:
        graph = await self._graph(account, version)
        return VersionInfo(version, record, graph, self._settings_of(account, record.uuid))

    async def _graph(self, account: str, version: VersionRecord) -> dict[str, Any] | None:
        key = account, version.code_hash, version.class_name
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key]
        stored = await self.graphs(version.code_hash)
        if stored is not None:
            graph = stored.get(version.class_name)
        else:
            files = await self.sources(account, version.code_hash)
            if files is None:  # it may still come
                return None
            async with self._drawing:
                if key in self._graphs:
                    return self._graphs[key]
                raw = await draw_graphs(files, [version.class_name])
                graph = self._graphs[key] = read_graphs(raw).get(version.class_name)
        self._graphs[key] = graph
        if len(self._graphs) > limits.GRAPHS_CACHED_MAX:
            self._graphs.popitem(last=False)
        return graph
