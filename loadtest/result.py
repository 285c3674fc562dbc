"""The document of a load test, schema `toque.loadtest/1`: JSON, written once at its end.

Whoever reads it needs nothing else. Fields are added, never changed; another schema is refused.
Percentiles are of `hdr`, the whole histogram (microseconds, base64 of its compressed form), so
that results can be put together and compared to the last digit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..runtime.errors import InvalidArgument
from ..runtime.files import write_atomically

SCHEMA = "toque.loadtest/1"
RESULT_BYTES_MAX = 256 * 1024 * 1024


class Target(msgspec.Struct, frozen=True):
    """What was put under load.

    Attributes:
        kind: `http`: a server that was there; `server`: one that the test started; `embedded`: a
            runtime of the test's own process; `attached`: a runtime that a program gave it.
    """

    kind: str
    url: str | None = None


class Machine(msgspec.Struct, frozen=True):
    """Where the test ran. `fsync_ms`: the median of some in the data folder; None: not known."""

    python: str
    platform: str
    cores: int
    fsync_ms: float | None = None


class Counts(msgspec.Struct):
    """What became of what was offered.

    Attributes:
        offered: operations that were due.
        accepted: of these, answered well.
        refused: refused for now: a rate, a full queue, overload.
        failed: anything else that is no answer; `unknown` ones are among them.
        completed, errored: instances that ended, well or not.
        retries: tries after the first ones.
        unknown: operations of which nobody knows whether they took effect.
        unfinished: instances that should have ended, and had not; `unstarted`: those of them
            that had not even begun.
    """

    offered: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    completed: int = 0
    errored: int = 0
    retries: int = 0
    unknown: int = 0
    unfinished: int = 0
    unstarted: int = 0

    def add(self, other: Counts) -> None:
        """Add another's."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Latency(msgspec.Struct, frozen=True):
    """How long something took, in milliseconds (None: of none); see the module for `hdr`."""

    count: int
    min: float | None = None
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    hdr: str = ""
    unit: str = "ms"


class Group(msgspec.Struct, frozen=True):
    """A part of the load that is told apart."""

    counts: Counts
    latencies: dict[str, Latency]


class Kill(msgspec.Struct):
    """What chaos did. `recovered_s`: until the shard made progress again; None: not in time."""

    t_s: float
    what: str
    shard: str
    recovered_s: float | None = None


class Verdict(msgspec.Struct, frozen=True):
    """An objective and what was measured. Without a measure it is not met."""

    objective: str
    measured: float | None
    met: bool


class RampStep(msgspec.Struct, frozen=True):
    """One rate of a ramp, and whether every objective held at it."""

    rate: float
    held: bool
    slos: list[Verdict]


class Result(msgspec.Struct, kw_only=True):
    """The document.

    Attributes:
        scenario, options: what was run, with everything that was left to its default.
        wall_s: from the first operation to the last.
        stopped_early: why it ended before its time; None: it did not.
        refusals, failures: how many, by error code.
        latencies: by name: `create` (from the time it was due), `create_service` (from the time
            it was sent), `start` (made to running), `end` (made to end), `wake` (due or event to
            running), `list`, `status`, `recovery` (kill to first progress), ...
        groups: by name, where a scenario tells parts apart.
        series: one sample a second: `t_s` and others of the same length; null: not known.
        control_plane: totals of its figures.
        processes: by name: `rss_mib_max`, `cpu_s`.
        fairness: `share_error`: the mean part of the slots that the wrong workflow had.
        ramp, held_rate: of a ramp: its steps, and the last rate at which every objective held.
        terminated: instances that had not ended when the test was over, and that it ended.
    """

    schema: str = SCHEMA
    toque: str
    scenario: str
    options: dict[str, Any]
    target: Target
    machine: Machine
    started_on: str
    wall_s: float
    stopped_early: str | None = None
    counts: Counts
    refusals: dict[str, int] = {}
    failures: dict[str, int] = {}
    latencies: dict[str, Latency] = {}
    groups: dict[str, Group] = {}
    series: dict[str, list[float | None]] = {}
    control_plane: dict[str, float | None] = {}
    processes: dict[str, dict[str, float]] = {}
    chaos: list[Kill] = []
    fairness: dict[str, float] | None = None
    slos: list[Verdict] = []
    ramp: list[RampStep] = []
    held_rate: float | None = None
    terminated: int = 0


class _Head(msgspec.Struct):
    schema: str = ""


def encode_result(result: Result) -> bytes:
    """The document as JSON, for people too."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def decode_result(raw: bytes, name: str = "the document") -> Result:
    """The document, or `InvalidArgument` that says what is wrong with it."""
    try:
        schema = msgspec.json.decode(raw, type=_Head).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{name} is no result of a load test: {error}.") from None
    if schema != SCHEMA:
        raise InvalidArgument(
            f"{name} has the schema {schema!r:.100}; this version reads {SCHEMA!r}. Write it with "
            "'toque loadtest SCENARIO --out result.json'."
        )
    try:
        result = msgspec.json.decode(raw, type=Result)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{name} is damaged: {error}.") from None
    length = {len(values) for values in result.series.values()}
    if len(length) > 1:
        raise InvalidArgument(f"{name} is damaged: its series differ in length.")
    tallies = [result.counts, *(group.counts for group in result.groups.values())]
    numbers = [getattr(each, name) for each in tallies for name in each.__struct_fields__]
    numbers += [*result.refusals.values(), *result.failures.values()]
    numbers += [each.count for each in result.latencies.values()]
    if min([result.wall_s, *numbers]) < 0:
        raise InvalidArgument(f"{name} is damaged: it has counts or times below 0.")
    return result


def read_result(path: Path) -> Result:
    """The document in a file, or `InvalidArgument`."""
    try:
        if path.stat().st_size > RESULT_BYTES_MAX:
            raise InvalidArgument(f"{path} is too large for the result of a load test.")
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} can't be read: {error.strerror}.") from None
    return decode_result(raw, str(path))


def write_result(result: Result, path: Path) -> None:
    """Write the document, whole or not at all; `InvalidArgument` if that is not possible."""
    try:
        write_atomically(path, encode_result(result))
    except OSError as error:
        raise InvalidArgument(f"{path} can't be written: {error.strerror}.") from None
