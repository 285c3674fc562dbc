"""The data directory: where a control plane keeps its shards, for one process at a time.

    DIR/toque.json            format, shard counts, and whether the stores have been made
    DIR/lock                  locked (flock) by the process that has the directory open
    DIR/shards/NAME.sqlite    one store per shard, with its mark and checksums beside it

Opening makes a directory that is missing or empty, and upgrades one of an older format: step by
step, each of them one atomic write of `toque.json`. Everything else that is no data directory, has
a newer format (`DataDirFormat`) or belongs to another opener (`DataDirInUse`) is refused and left
as it is. The lock goes with the process, so nothing needs to be cleaned up after a crash.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from . import limits
from .errors import DataDirFormat, DataDirInUse, InvalidArgument
from .files import sync_folder, write_atomically
from .ids import Placement
from .upgrades import DirUpgrade, way_from

DIR_FORMAT = 3
"""The format of the directory that this version makes. Stores have a format of their own."""

SETTINGS_FILE = "toque.json"
LOCK_FILE = "lock"
BLOBS_FOLDER = "blobs"
SHARDS_FOLDER = "shards"

_PASSING_FILES = {LOCK_FILE, f"{SETTINGS_FILE}.tmp", SHARDS_FOLDER, "run.lock", "run.json"}
"""What may be there before the settings are: a directory that is just being made."""
_SHARD_NAME = re.compile(r"[cd][0-9]{1,4}")


class Settings(msgspec.Struct, frozen=True):
    """What is fixed when a data directory is made."""

    format: int
    data_shards: int
    control_shards: int
    created_ms: int | None = None
    stores_made: bool = False
    """All stores were made once: one that is missing now is lost, and not to be made anew."""


class _Format(msgspec.Struct, frozen=True):
    """The one field that every format has."""

    format: int


class DataDir:
    """An open data directory. Made by `open`; release it with `close`.

    Attributes:
        path: the directory, absolute, links resolved.
        settings: what was fixed when it was made.
        created: whether this opening made it.
    """

    def __init__(self, path: Path, settings: Settings, created: bool, lock: int) -> None:
        self.path = path
        self.settings = settings
        self.created = created
        self._lock: int | None = lock

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        data_shards: int | None = None,
        control_shards: int | None = None,
        created_ms: int | None = None,
        upgrades: Sequence[DirUpgrade] = (),
    ) -> DataDir:
        """Open a data directory, or make it.

        Args:
            path: the directory; its parents are made too.
            data_shards, control_shards: how many shards a new directory gets (1 if not given).
                An existing one keeps what it has; asking for another number is refused.
            created_ms: noted in a new directory.
            upgrades: what leads directories of older formats to the newest one.

        Raises:
            DataDirFormat: it is no data directory, a newer one, an older one that `upgrades`
                don't lead on, or it can't be used.
            DataDirInUse: somebody has it open.
            InvalidArgument: shard counts that are out of range or not the directory's.
        """
        for count in (data_shards, control_shards):
            if count is not None and count < 1:
                raise InvalidArgument(f"a data directory has at least one shard, not {count}.")
        if (data_shards or 1) + (control_shards or 1) > limits.SHARDS_MAX:
            raise InvalidArgument(f"a data directory has at most {limits.SHARDS_MAX} shards.")
        path = Path(os.path.realpath(path))
        try:
            _make_folder(path)
            _refuse_foreign(path)
            lock = _lock(path)
        except OSError as error:
            raise DataDirFormat(
                f"{path} can't be used as a data directory: {error.strerror}."
            ) from error
        try:
            _upgrade(path, upgrades)
            return cls._open_locked(path, lock, data_shards, control_shards, created_ms)
        except BaseException as error:
            os.close(lock)
            if isinstance(error, OSError):
                raise DataDirFormat(
                    f"{path} can't be used as a data directory: {error.strerror}."
                ) from error
            raise

    @classmethod
    def _open_locked(
        cls,
        path: Path,
        lock: int,
        data_shards: int | None,
        control_shards: int | None,
        created_ms: int | None,
    ) -> DataDir:
        settings = read_settings(path)
        created = settings is None
        if settings is None:
            settings = Settings(DIR_FORMAT, data_shards or 1, control_shards or 1, created_ms)
            _make_folder(path / SHARDS_FOLDER)
            write_atomically(path / SETTINGS_FILE, msgspec.json.encode(settings) + b"\n")
        for kind, asked, has in (
            ("data", data_shards, settings.data_shards),
            ("control", control_shards, settings.control_shards),
        ):
            if asked is not None and asked != has:
                raise InvalidArgument(
                    f"{path} was made with {has} {kind} shards, which can't be changed; "
                    f"{asked} were asked for. Leave the number out, or use a new directory.",
                    {"has": has, "asked": asked},
                )
        _write_holder(lock)
        return cls(path, settings, created, lock)

    @property
    def placement(self) -> Placement:
        """Where entities live, by the directory's shard counts."""
        return Placement(self.settings.data_shards, self.settings.control_shards)

    def store_path(self, shard: str) -> Path:
        """The file of a shard's store."""
        return store_path(self.path, shard)

    def note_stores_made(self) -> None:
        """All stores exist; from now on one that is missing is refused.

        Raises:
            DataDirFormat: it can't be noted.
        """
        if self.settings.stores_made:
            return
        settings = msgspec.structs.replace(self.settings, stores_made=True)
        try:
            write_atomically(self.path / SETTINGS_FILE, msgspec.json.encode(settings) + b"\n")
        except OSError as error:
            raise DataDirFormat(f"{self.path} can't be written to: {error.strerror}.") from error
        self.settings = settings

    def close(self) -> None:
        """Let others open it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def store_path(folder: Path, shard: str) -> Path:
    """The file of a shard's store in a data directory."""
    if not _SHARD_NAME.fullmatch(shard):
        raise InvalidArgument(f"{shard!r} is no name of a shard, such as 'd0' or 'c0'.")
    return folder / SHARDS_FOLDER / f"{shard}.sqlite"


def check_store(folder: Path, shard: str) -> None:
    """See that a store is there if the stores of the directory have been made.

    Raises:
        DataDirFormat: it is missing or empty. To make it anew would lose its instances silently.
    """
    settings = read_settings(folder)
    path = store_path(folder, shard)
    if settings is None or not settings.stores_made:
        return
    if not path.exists() or path.stat().st_size == 0:
        what = "empty" if path.exists() else "missing"
        raise DataDirFormat(
            f"{path} is {what}, though it was made before; the instances in it are lost with it. "
            "Put it back, or the whole directory from one backup.",
            {"shard": shard},
        )


def read_settings(path: Path) -> Settings | None:
    """The settings of a data directory; None if it has none yet.

    Raises:
        DataDirFormat: they are damaged, or of a format that this version does not know.
    """
    file = path / SETTINGS_FILE
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return None
    number = read_format(path)
    if number != DIR_FORMAT:
        older = 0 < number < DIR_FORMAT
        what = "It must be upgraded first." if older else "Use the version that wrote it, or newer."
        raise DataDirFormat(
            f"{path} has directory format {number}; this version writes format {DIR_FORMAT}. "
            f"{what}",
            {"found": number, "known": DIR_FORMAT},
        )
    try:
        settings = msgspec.json.decode(raw, type=Settings)
        if min(settings.data_shards, settings.control_shards) < 1:
            raise msgspec.ValidationError("a shard count is below 1")
    except msgspec.DecodeError as error:
        raise DataDirFormat(f"{file} is damaged: {error}.") from None
    return settings


def read_format(path: Path) -> int:
    """The format of a data directory that has settings.

    Raises:
        DataDirFormat: they are damaged.
        OSError: they can't be read.
    """
    file = path / SETTINGS_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Format).format
    except msgspec.DecodeError as error:
        raise DataDirFormat(f"{file} is damaged: {error}.") from None


def _upgrade(path: Path, upgrades: Sequence[DirUpgrade]) -> None:
    """Lead a directory of an older format on, if there is a way. Under its lock."""
    file = path / SETTINGS_FILE
    if not file.exists():
        return
    way = way_from(upgrades, read_format(path), DIR_FORMAT)
    for upgrade in way or ():
        content: dict[str, Any] = msgspec.json.decode(file.read_bytes())
        content = {**upgrade.change(content), "format": upgrade.to}
        write_atomically(file, msgspec.json.encode(content) + b"\n")


def _make_folder(path: Path) -> None:
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(path.parent)


def _refuse_foreign(path: Path) -> None:
    """Refuse a directory that holds other things than ours, before anything is put into it."""
    if (path / SETTINGS_FILE).exists():
        return
    foreign = sorted(set(os.listdir(path)) - _PASSING_FILES)
    if foreign:
        raise DataDirFormat(
            f"{path} is no data directory and not empty (it holds {foreign[0]!r}). "
            "Name an empty directory, or one that does not exist."
        )


def _lock(path: Path) -> int:
    descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        who = "this process" if holder == str(os.getpid()) else f"process {holder or 'unknown'}"
        raise DataDirInUse(
            f"{path} is in use by {who}. Stop it first, or choose another directory.",
            {"pid": holder},
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write_holder(lock: int) -> None:
    """Note who holds the lock, for messages only."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
