"""Reads from the shards' files, beside their owners, who holds slots.

Each sample is one short read of every shard's file, on read-only connections. Shards cannot be
read at one instant; a sample whose reads lie further apart than `APART_S` says nothing about
sums over shards and is taken again. Within that time a slot can't have moved from one shard to
another: that takes two commits and a message.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import NamedTuple

APART_S = 0.001
PERIOD_S = 0.02
RUNNING = "SELECT count(*) FROM instances WHERE active = 1 AND status = 'running'"
HELD = "SELECT count(*) FROM souschef_held"
LEASED = "SELECT coalesce(sum(ledger), 0) FROM gatekeeper_leases"


class Sample(NamedTuple):
    """How many instances run, how many slots SousChefs count as held, how many are leased."""

    running: int
    held: int
    leased: int


class SlotReader:
    """Samples in a thread until `close`.

    Attributes:
        samples: how many were taken.
        most: the largest of each figure.
        violations: sentences.
    """

    def __init__(self, data: Path, limit: int) -> None:
        self.samples = 0
        self.most = Sample(0, 0, 0)
        self.violations: list[str] = []
        self._data = data
        self._limit = limit
        self._open: dict[Path, sqlite3.Connection] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(PERIOD_S):
                sample = self._sample()
                if sample is not None:
                    self._check(sample)
        finally:
            self._forget()

    def _check(self, sample: Sample) -> None:
        self.samples += 1
        self.most = Sample(*map(max, self.most, sample))
        for name, count in zip(Sample._fields, sample, strict=True):
            if count > self._limit and len(self.violations) < 20:
                self.violations.append(f"{count} slots {name}; at most {self._limit} may be")

    def _sample(self) -> Sample | None:
        try:
            return read_slots(self._data, self._open)
        except sqlite3.Error:  # a file that is just being made, or recovered after a kill
            self._forget()
            return None

    def _forget(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()


def read_slots(data: Path, known: dict[Path, sqlite3.Connection] | None = None) -> Sample | None:
    """One sample; None if its reads lay too far apart.

    Raises:
        sqlite3.Error: a file can't be read just now.
    """
    connections = {} if known is None else known
    try:
        paths = sorted((data / "shards").glob("*.sqlite"))
        for path in paths:
            if path not in connections:
                connections[path] = sqlite3.connect(
                    f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=0.5
                )
        running = held = leased = 0
        for path in paths:
            if path.name.startswith("c"):
                held += connections[path].execute(HELD).fetchone()[0]
                leased += connections[path].execute(LEASED).fetchone()[0]
        began = time.monotonic()
        for path in paths:
            if path.name.startswith("d"):
                running += connections[path].execute(RUNNING).fetchone()[0]
        apart_s = time.monotonic() - began
        return Sample(running, held, leased) if apart_s < APART_S else None
    finally:
        if known is None:
            for connection in connections.values():
                connection.close()
