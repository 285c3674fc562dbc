"""Reads histories from the files of a data directory, or of a simulation. Never writes.

A directory may be read beside the server that uses it: each store is read in one transaction, so
each history is whole.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..engines.codec_names import Given, codecs_of
from ..engines.journal import EVENTS, INSTANCES, PAYLOADS, STEPS, Instance, record_from_row
from ..engines.plans import plan_of
from ..engines.status import FINISHED
from ..runtime.codec import NULL
from ..runtime.datadir import BLOBS_FOLDER, read_settings, store_path
from ..runtime.errors import InvalidArgument
from ..runtime.ids import Placement, split_engine_key
from ..runtime.payload_codec import NO_CODECS, Codecs
from ..runtime.schema_sqlite import connect_reader
from .histories import FORMAT, History

Wanted = Callable[[str, Instance], bool]
"""`(key, instance)`: whether that one is wanted."""


def histories(
    path: str | os.PathLike[str],
    workflow: str | None = None,
    *,
    id: str | None = None,
    account: str | None = None,
    finished: bool = False,
    codecs: Mapping[str, Given] | None = None,
) -> Iterator[History]:
    """Histories of instances of a data directory (or a copy of one).

    Args:
        path: the directory.
        workflow: of that one only; None: of all.
        id: of the instances with that id only.
        account: of that account only.
        finished: of those that have ended, too.
        codecs: as for `toque.embedded`, if payloads are written through one.

    Raises:
        InvalidArgument: there is no data directory.
        DataDirFormat: it is of another format.
        CodecMissing, CodecWrong: its payloads can't be read.
    """
    folder = Path(path)
    settings = read_settings(folder)
    if settings is None:
        raise InvalidArgument(
            f"{folder} is no data directory of toque. Right: the one that `toque dev` or "
            "toque.embedded() was given."
        )

    def wanted(key: str, instance: Instance) -> bool:
        owner, _, instance_id = split_engine_key(key)
        return (
            workflow in (None, instance.workflow)
            and id in (None, instance_id)
            and account in (None, owner)
            and (finished or instance.status not in FINISHED)
        )

    given = codecs_of(codecs)
    for shard in Placement(settings.data_shards, settings.control_shards).data_names():
        store = store_path(folder, shard)
        if store.exists():
            yield from histories_in(store, folder / BLOBS_FOLDER / shard, wanted, given)


def histories_in(
    store: Path, blobs: Path, wanted: Wanted, codecs: Codecs = NO_CODECS
) -> Iterator[History]:
    """Histories of instances of one store.

    Args:
        store: its file.
        blobs: where its streams are.
        wanted: which.
        codecs: what payloads were written through.
    """
    connection = connect_reader(store)
    try:
        connection.execute("BEGIN")
        for key, blob in connection.execute(f"SELECT entity, blob FROM {INSTANCES.name}"):
            seal = codecs.seal(split_engine_key(key)[0])
            instance = Instance.from_row((seal.open(blob),))
            if wanted(key, instance):
                yield _history(connection, key, instance, blobs, seal.open)
    finally:
        connection.close()


def _history(
    connection: sqlite3.Connection,
    key: str,
    instance: Instance,
    blobs: Path,
    opened: Callable[[bytes], bytes],
) -> History:
    def rows(sql: str, *more: Any) -> list[Any]:
        return connection.execute(sql, (key, *more)).fetchall()

    def payload(what: str, inline: bytes | None) -> bytes:
        if inline is not None:
            return inline
        found = rows(f"SELECT body FROM {PAYLOADS.name} WHERE entity = ? AND what = ?", what)
        return opened(found[0][0]) if found else NULL

    steps = rows(f"SELECT entity, ordinal, blob FROM {STEPS.name} WHERE entity = ? ORDER BY 2")
    columns = "seq, type, at_ms, payload"
    events = rows(f"SELECT {columns} FROM {EVENTS.name} WHERE entity = ? ORDER BY 1")
    plan = plan_of(
        key,
        instance,
        [record_from_row((*row[:-1], opened(row[-1]))) for row in steps],
        params=payload("params", instance.params),
        events=[(seq, kind, at_ms) for seq, kind, at_ms, _ in events],
        now_ms=instance.modified_ms,
        blobs=str(blobs) if blobs.is_dir() else "",
    )
    is_complete = instance.status == "complete"
    return History(
        FORMAT,
        instance.workflow,
        instance.status,
        plan,
        {seq: opened(body) for seq, _, _, body in events},
        payload("output", instance.output) if is_complete else None,
        "" if instance.error is None else instance.error.name,
    )
