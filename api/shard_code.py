"""Where a shard's instances find their code: bundles on disk, this process, or workers.

Apart from `wiring`, so that a shard's process imports no client and no front end.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ..actors.keeper import Process
from ..actors.worker import Launcher
from ..engines.bundle_store import BUNDLES_FOLDER, BundleStore
from ..engines.code_host import CodeHost, InProcessCodeHost
from ..engines.placement import PlacedCodeHost
from ..engines.resource_body import Resources
from ..engines.worker_host import WorkerSettings
from ..engines.worker_slots import WorkerSlots
from ..runtime import limits
from ..runtime.clock import SystemClock
from ..runtime.datadir import DataDir
from ..runtime.entropy import SystemEntropy
from ..runtime.notes import Notes, notes_path, read_notes
from .apps import App


def bundles_of(data_dir: Path) -> BundleStore:
    """The bundles of a data directory."""
    return BundleStore(data_dir / BUNDLES_FOLDER)


def keep_app(app: App, directory: DataDir) -> None:
    """Store the app's code; for who has opened the directory."""
    store = bundles_of(directory.path)
    store.sweep()
    app.keep_in(store)


def place_code(
    app: App,
    shard: str,
    data_dir: Path,
    *,
    run_dir: str,
    trusted: str,
    launcher: Launcher,
    loop: asyncio.AbstractEventLoop,
    watched: tuple[Process, ...] = (),
    resources: Resources | None = None,
    owns_loop: bool = False,
) -> CodeHost:
    """Where the app's code runs for one shard.

    Args:
        app: the code.
        shard: whose instances.
        data_dir: keeps the notes on whose code ran when the process ended.
        run_dir: for workers' sockets.
        trusted: the account whose code may run in this process.
        launcher: starts workers.
        loop: the shard's.
        watched: processes whose end ends the workers.
        resources: runs bodies that ask for resources.
        owns_loop: see `InProcessCodeHost`.
    """
    if not shard.startswith("d"):  # no instances live there
        return InProcessCodeHost(loop)
    path = notes_path(data_dir, shard)
    blamed = read_notes(path)
    notes = Notes(path)
    workers = WorkerSettings(
        shard=shard,
        run_dir=run_dir,
        notes_dir=os.path.dirname(path),
        launcher=launcher,
        loop=loop,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        slots=WorkerSlots(limits.WORKERS_PER_SHARD_MAX, limits.WORKERS_FOR_OTHERS),
        watched=watched,
    )
    return PlacedCodeHost(
        InProcessCodeHost(
            loop, app.definitions, notes=notes, resources=resources, owns_loop=owns_loop
        ),
        trusted=trusted,
        workers=workers,
        bundle=app.bundle,
        store=bundles_of(data_dir),
        is_exact=app.code is not None or not app.definitions,
        blamed=blamed,
        notes=notes,
    )
