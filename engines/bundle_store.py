"""Bundles on disk: stored once by content, unpacked once, never changed.

    FOLDER/HASH.zip      the bundle, canonical
    FOLDER/HASH.json     its manifest: which workflows it defines; written last
    FOLDER/HASH.graphs   graphs of its workflows' steps, once they were drawn; may be made anew
    FOLDER/HASH/         unpacked when a worker first wants it, read-only

Each is written under a passing name, synced and renamed, so a crash leaves a whole one or none,
and what it leaves of a passing one is removed when the directory is next opened. Several
processes may store and unpack the same bundle at a time: the first wins, and all have the same.
Nothing is removed: an instance may need its code for as long as it lives.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..runtime import limits
from ..runtime.errors import BundleInvalid, CodeMissing, ToqueError
from ..runtime.files import sync_folder
from ..runtime.ids import check_workflow_name
from .archive import Bundle, is_code_hash
from .ray_options import check_ray_options
from .workflow import ACTOR, SHARD, WorkflowDefinition

BUNDLES_FOLDER = "bundles"
PASSING = ".tmp"
"""How the names of what is only passing end; `sweep` removes them."""
_CLASS_CHARS_MAX = 200
_SKIPPED_MARKS = ("pyvenv.cfg", "toque.json")
"""Folders that hold one of these are an environment or a data directory, and no code."""


class Defined(msgspec.Struct, frozen=True):
    """A workflow that a bundle defines; as in `WorkflowDefinition`."""

    name: str
    class_name: str
    placement: str = SHARD
    ray_options: dict[str, Any] = {}
    takes_params: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """What importing a bundle has shown."""

    workflows: list[Defined]

    def find(self, workflow: str, class_name: str) -> Defined | None:
        """The one for an instance: by its class, since a name may stand for another one's class."""
        named = [one for one in self.workflows if one.name == workflow]
        if named and named[0].class_name == class_name:
            return named[0]
        of_class = [one for one in self.workflows if one.class_name == class_name]
        return next(iter(of_class or named), None)


def manifest_of(definitions: list[WorkflowDefinition]) -> Manifest:
    """The manifest of loaded code."""
    return Manifest([_defined(definition) for definition in definitions])


def _defined(code: WorkflowDefinition) -> Defined:
    takes_params = code.payload_type is not Any
    return Defined(code.name, code.class_name, code.placement, dict(code.ray_options), takes_params)


def check_manifest(manifest: Manifest) -> Manifest:
    """The manifest, if it may be believed: it was told by code that nobody has vouched for.

    Raises:
        BundleInvalid
    """
    try:
        if not 0 < len(manifest.workflows) <= limits.BUNDLE_WORKFLOWS_MAX:
            raise ValueError(f"it defines {len(manifest.workflows)} workflows")
        names = [one.name for one in manifest.workflows]
        if len(set(names)) != len(names):
            raise ValueError("two workflows have the same name")
        for one in manifest.workflows:
            check_workflow_name(one.name)
            if not one.class_name.isidentifier() or len(one.class_name) > _CLASS_CHARS_MAX:
                raise ValueError(f"{one.class_name!r:.80} is no name of a class or function")
            if one.placement not in (SHARD, ACTOR):
                raise ValueError(f"{one.placement!r:.80} is no placement")
            check_ray_options(one.ray_options, "ray_options")
    except (ValueError, ToqueError) as error:
        raise BundleInvalid(f"the bundle is refused: {error}".rstrip(".") + ".") from None
    return manifest


class BundleStore:
    """See the module's description. Methods block on the disk.

    Args:
        folder: where bundles are kept; made when the first one is stored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifests: dict[str, Manifest] = {}

    def put(self, bundle: Bundle, manifest: Manifest) -> str:
        """Store a bundle, durably, unless it is there; gives its hash."""
        code_hash = bundle.code_hash
        if self.manifest(code_hash) is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
            self._write(f"{code_hash}.zip", bundle.to_zip())
            self._write(f"{code_hash}.json", msgspec.json.encode(manifest))
        return code_hash

    def manifest(self, code_hash: str) -> Manifest | None:
        """What a stored bundle defines; None: it is not stored."""
        known = self._manifests.get(code_hash)
        if known is None and is_code_hash(code_hash):
            try:
                raw = (self.folder / f"{code_hash}.json").read_bytes()
            except FileNotFoundError:
                return None
            known = self._manifests[code_hash] = msgspec.json.decode(raw, type=Manifest)
        return known

    def graphs(self, code_hash: str) -> bytes | None:
        """The graphs that `put_graphs` was given; None: it was not."""
        if not is_code_hash(code_hash):
            return None
        try:
            return (self.folder / f"{code_hash}.graphs").read_bytes()
        except FileNotFoundError:
            return None

    def put_graphs(self, code_hash: str, graphs: bytes) -> None:
        """Keep the graphs of a stored bundle's workflows. What they are is the caller's."""
        self._write(f"{code_hash}.graphs", graphs)

    def get(self, code_hash: str) -> Bundle:
        """A stored bundle, checked against its hash.

        Raises:
            CodeMissing: it is not stored, or damaged.
        """
        found: Bundle | None = None
        damage = "is not stored here"
        if is_code_hash(code_hash):
            try:
                raw = (self.folder / f"{code_hash}.zip").read_bytes()
                found = Bundle.from_zip(raw, len(raw))  # packed here, and perhaps less well
            except FileNotFoundError:
                pass
            except BundleInvalid as error:
                damage = f"is damaged on disk ({error})"
        if found is not None and found.code_hash != code_hash:
            damage = "is damaged on disk (its content has another hash)"
        elif found is not None:
            return found
        raise code_missing(code_hash, damage)

    def unpacked(self, code_hash: str) -> Path:
        """The folder with the files of a stored bundle; unpacked if it is not yet.

        Raises:
            CodeMissing: it is not stored, or damaged.
        """
        target = self.folder / code_hash
        if is_code_hash(code_hash) and target.is_dir():
            return target
        bundle = self.get(code_hash)
        made = Path(tempfile.mkdtemp(prefix=f"{code_hash}.", suffix=PASSING, dir=self.folder))
        try:
            write_files(made, bundle.files)
            _rename_folder(made, target)
        finally:
            remove_files(made)
        sync_folder(self.folder)
        return target

    def sweep(self) -> None:
        """Remove what a crash left half made. Only where nobody else uses the directory."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob(f"*{PASSING}"):
            if path.is_dir():
                remove_files(path)
            else:
                path.unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        descriptor, made = tempfile.mkstemp(prefix=f"{name}.", suffix=PASSING, dir=self.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            os.replace(made, self.folder / name)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
        sync_folder(self.folder)


def code_missing(code_hash: str, why: str) -> CodeMissing:
    """The error of an instance whose code can't be had."""
    return CodeMissing(
        f"the code {code_hash:.12} {why}. Deploy it again as it was ('toque deploy'), and its "
        "instances go on; or terminate them.",
        {"code_hash": code_hash},
    )


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into an empty folder, durably and read-only."""
    folders = {folder}
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        folders.update(one for one in target.parents if one.is_relative_to(folder))
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    for one in folders:
        sync_folder(one)
        os.chmod(one, 0o555)


def remove_files(folder: Path) -> None:
    """Remove a folder that `write_files` filled, if it is there."""
    for parent, _, _ in os.walk(folder):
        os.chmod(parent, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _rename_folder(made: Path, target: Path) -> None:
    os.chmod(made, 0o700)  # a folder that may not be written can't be renamed everywhere
    try:
        os.rename(made, target)
    except OSError:
        if not target.is_dir():  # else another process was first, with the same
            raise
        return
    os.chmod(target, 0o555)


def read_app(path: Path) -> Bundle:
    """The bundle of a Python file, or of a folder with an app in it.

    Of a folder all files are taken, but for hidden ones, what Python writes itself, and folders
    that are virtual environments or data directories. A folder that is a package (it holds an
    `__init__.py`) is taken as one, under its name.

    Raises:
        BundleInvalid: there is no such path, or it can't be a bundle.
    """
    whole = path.resolve()
    if whole.is_file():
        if whole.suffix != ".py":
            raise BundleInvalid(f"{path} is no Python file; name one, or a folder.")
        return Bundle({whole.name: whole.read_bytes()})
    if not whole.is_dir():
        raise BundleInvalid(f"{path}: no such file or folder.")
    prefix = f"{whole.name}/" if (whole / "__init__.py").is_file() else ""
    files: dict[str, bytes] = {}
    left = limits.BUNDLE_UNPACKED_BYTES_MAX
    for parent, folders, names in os.walk(whole):
        folders[:] = sorted(one for one in folders if not _is_skipped(Path(parent, one)))
        for name in sorted(names):
            file = Path(parent, name)
            if name.startswith(".") or file.suffix in (".pyc", ".pyo"):
                continue
            inner = file.relative_to(whole).as_posix()
            if file.is_symlink() or not file.is_file():
                raise BundleInvalid(f"{inner} is a link or a device; a bundle holds files only.")
            left -= file.stat().st_size
            if left < 0 or len(files) >= limits.BUNDLE_FILES_MAX:
                raise BundleInvalid(
                    f"{path} holds more than {limits.BUNDLE_FILES_MAX} files or "
                    f"{limits.BUNDLE_UNPACKED_BYTES_MAX} bytes. Deploy a folder with code only."
                )
            files[prefix + inner] = file.read_bytes()
    return Bundle(files)


def _is_skipped(folder: Path) -> bool:
    name = folder.name
    if name.startswith(".") or name == "__pycache__" or name.endswith(".egg-info"):
        return True
    if folder.is_symlink():
        raise BundleInvalid(f"{name} is a link; a bundle holds files only.")
    return any((folder / mark).exists() for mark in _SKIPPED_MARKS)
