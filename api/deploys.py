"""Deploying code, naming its workflows, and deleting them.

A deploy checks the bundle, has it imported in a process of its own, stores it durably with the
graphs of its workflows, and only
then tells the Account, which takes the whole script in one commit. So no version ever names code
that is not there; what is stored and never named does no harm. The same deploy again changes
nothing. How many imports run at a time is bounded, and how many wait for their turn.

Front ends learn of a change with their next snapshot, at most a second later; this one at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..engines.archive import Bundle
from ..engines.bundle_store import BundleStore, Manifest
from ..engines.inspection import inspect_bundle
from ..gatekeeper.deploys import check_script_name
from ..gatekeeper.messages import (
    ACCOUNT_KIND,
    Deployed,
    DeployedWorkflow,
    LimitsChange,
    ScriptRecord,
    WorkflowRecord,
)
from ..runtime import limits
from ..runtime.errors import CodeMissing, InvalidArgument, Overloaded
from ..runtime.ids import EntityRef, check_account_id, check_workflow_name
from .cache import AccountCache
from .calls import Caller
from .graph import Node
from .graph_child import draw_graphs, read_graphs

T = TypeVar("T")
Inspect = Callable[[Bundle, Path], Awaitable[Manifest]]


class Scripts(msgspec.Struct, frozen=True):
    """The scripts of an account, and the workflows that are theirs."""

    scripts: list[ScriptRecord]
    workflows: list[WorkflowRecord]


class Deploys:
    """See the module's description.

    Args:
        caller: for calls to Accounts.
        cache: of this front end; made anew after each change.
        inspect: finds out what a bundle defines.

    Attributes:
        store: keeps the bundles; None: this front end has none, and takes no deploys.
    """

    def __init__(
        self, caller: Caller, cache: AccountCache, inspect: Inspect = inspect_bundle
    ) -> None:
        self.store: BundleStore | None = None
        self._caller = caller
        self._cache = cache
        self._inspect = inspect
        self._drawing = asyncio.Semaphore(limits.BUNDLE_IMPORTS_MAX)
        self._importing = asyncio.Semaphore(limits.BUNDLE_IMPORTS_MAX)
        self._waiting = 0

    async def deploy(
        self, account: str, script: str, raw: bytes, *, take_over: bool = False
    ) -> Deployed:
        """Deploy a bundle.

        Args:
            account: whose.
            script: the name that it is deployed under.
            raw: the zip.
            take_over: workflows' names that other scripts have become this one's.

        Raises:
            BundleInvalid, BundleRefused, WorkflowOwned, TooManyWorkflows, InvalidArgument:
                nothing was changed.
            Overloaded: too many deploys are under way.
        """
        check_account_id(account)
        check_script_name(script)
        store = self.store
        if store is None:
            raise InvalidArgument("this server keeps no code; deploy to one with a data directory.")
        bundle = await asyncio.to_thread(Bundle.from_zip, raw)
        manifest = await asyncio.to_thread(store.manifest, bundle.code_hash)
        if manifest is None:
            manifest = await self._inspected(bundle, store.folder)
        await asyncio.to_thread(store.put, bundle, manifest)
        await self.graphs(bundle.code_hash)
        found: Deployed = await self._ask(
            Deployed,
            account,
            "put_script",
            script,
            bundle.code_hash,
            [(each.name, each.class_name) for each in manifest.workflows],
            take_over,
        )
        await self._cache.workflows(account)
        return found

    async def _inspected(self, bundle: Bundle, scratch: Path) -> Manifest:
        if self._waiting >= limits.BUNDLE_IMPORTS_WAITING_MAX:
            raise Overloaded(f"{self._waiting} deploys wait for their turn.")
        self._waiting += 1
        try:
            async with self._importing:
                return await self._inspect(bundle, scratch)
        finally:
            self._waiting -= 1

    async def scripts(self, account: str) -> Scripts:
        """The scripts of an account, by name."""
        check_account_id(account)
        found: list[ScriptRecord] = await self._ask(list[ScriptRecord], account, "list_scripts")
        return Scripts(found, await self._cache.workflows(account))

    async def take_app(
        self, account: str, script: str, code_hash: str, classes: list[tuple[str, str]]
    ) -> None:
        """Have an account take the workflows of the app that this server was started with.

        Who starts the app owns the directory, so names that other scripts had are taken over.

        Args:
            account: whose.
            script: the app's name.
            code_hash: of its code, which is stored already.
            classes: name and class of each workflow.
        """
        await self._ask(Deployed, account, "put_script", script, code_hash, classes, True)

    async def take_workflow(
        self, account: str, script: str, code_hash: str, name: str, class_name: str
    ) -> None:
        """As `take_app`, of one workflow whose code is in this process only."""
        args = (name, class_name, script, code_hash, True)
        await self._ask(WorkflowRecord, account, "put_workflow", *args)

    async def register(
        self, account: str, name: str, class_name: str, script: str, change: LimitsChange
    ) -> DeployedWorkflow:
        """Give a class of a deployed script a workflow's name; see `Account.register`."""
        check_account_id(account)
        check_workflow_name(name)
        found: DeployedWorkflow = await self._ask(
            DeployedWorkflow, account, "register", name, class_name, script, change
        )
        await self._cache.workflows(account)
        return found

    async def delete(self, account: str, name: str) -> WorkflowRecord:
        """Delete a workflow: its name is free at once, its instances go in the background.

        Raises:
            WorkflowNotFound
        """
        check_account_id(account)
        check_workflow_name(name)
        found: WorkflowRecord = await self._ask(WorkflowRecord, account, "delete_workflow", name)
        await self._cache.workflows(account)
        return found

    async def graphs(self, code_hash: str) -> Mapping[str, Node] | None:
        """Graphs of a stored bundle's workflows by class, drawn once; None: it is not stored."""
        store = self.store
        if store is None:
            return None
        raw = await asyncio.to_thread(store.graphs, code_hash)
        manifest = await asyncio.to_thread(store.manifest, code_hash) if raw is None else None
        if manifest is not None:
            async with self._drawing:
                raw = await asyncio.to_thread(store.graphs, code_hash)
                files = await self.sources(code_hash) if raw is None else None
                if files is not None:
                    raw = await draw_graphs(files, [one.class_name for one in manifest.workflows])
                    with contextlib.suppress(OSError):  # they can be drawn again
                        await asyncio.to_thread(store.put_graphs, code_hash, raw)
        return None if raw is None else read_graphs(raw)

    async def sources(self, code_hash: str) -> Mapping[str, str] | None:
        """The texts of the Python files of a stored bundle; None: it is not stored."""
        if self.store is None:
            return None
        try:
            bundle = await asyncio.to_thread(self.store.get, code_hash)
        except CodeMissing:
            return None
        return {
            path: content.decode("utf-8", "replace")
            for path, content in bundle.files.items()
            if path.endswith(".py")
        }

    async def _ask(self, expected: type[T] | Any, account: str, method: str, *args: object) -> T:
        found: T = await self._caller.call(
            expected,
            self._caller.deadline(),
            EntityRef(ACCOUNT_KIND, account),
            method,
            *args,
            changes=True,
        )
        return found
