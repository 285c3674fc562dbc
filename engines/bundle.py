"""How a worker finds its code: in the store of bundles, by file, or by the names of what was given.

Plain data (it travels in a `WorkerSpec`); loading it imports the files anew, so code never
travels. What is defined inside a function, or typed into a shell, has no file and can't be found.
A file is used as long as it is what it was; once it has been edited, what was stored of it is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..actors import app_code
from ..runtime.errors import WorkflowLoadError
from .archive import entry_of, hash_of_files
from .bundle_store import BundleStore
from .workflow import WorkflowDefinition, definition_of, definitions_of, load_file


def bundle_of_file(path: str | Path, code_hash: str = "", store: str = "") -> dict[str, Any]:
    """Code in an app file; with a hash, and a store's folder, as it was when it had that hash."""
    found = {"file": str(Path(path).resolve()), "sys_path": sys.path[:]}
    return {**found, "hash": code_hash, "store": store} if store else found


def bundle_of_stored(code_hash: str, store: str, sys_path: list[str]) -> dict[str, Any]:
    """A bundle of a store."""
    return {"hash": code_hash, "store": store, "sys_path": sys_path}


def bundle_of_definitions(definitions: Iterable[WorkflowDefinition]) -> dict[str, Any]:
    """The bundle of workflows given as objects; those that can't be found are left out."""
    names = []
    for definition in definitions:
        entry = definition.entry
        module = sys.modules.get(entry.__module__)
        file = getattr(module, "__file__", None)
        if file is not None and "<locals>" not in entry.__qualname__:
            names.append([definition.name, entry.__module__, str(Path(file)), entry.__qualname__])
    return {"names": names, "sys_path": sys.path[:]}


def check_can_move(definition: WorkflowDefinition) -> None:
    """Refuse code that no other process can find.

    Raises:
        WorkflowLoadError: it has no file, or is defined inside a function.
    """
    if not bundle_of_definitions([definition])["names"]:
        raise WorkflowLoadError(
            f"workflow {definition.name!r} is to run in a process of its own, which can't find "
            f"its code: {definition.entry.__qualname__} is defined inside a function or in a "
            "shell. Define it at the top level of a file."
        )


def load_bundle(bundle: dict[str, Any]) -> list[WorkflowDefinition]:
    """The workflows of a bundle, imported here.

    Raises:
        WorkflowLoadError: they can't be.
    """
    sys.path[:] = [*dict.fromkeys([*sys.path, *bundle["sys_path"]])]
    if "file" in bundle:
        import_from_beside(bundle["file"])
    if "hash" in bundle:
        store, code_hash = BundleStore(Path(bundle["store"])), bundle["hash"]
        if "file" not in bundle or not is_file_of(Path(bundle["file"]), code_hash):
            return load_unpacked(store.unpacked(code_hash), code_hash)
    if "file" in bundle:
        return definitions_of(load_file(bundle["file"]))
    modules: dict[str, ModuleType] = {}
    found = []
    for _name, module, file, qualname in bundle["names"]:
        if module not in modules:
            modules[module] = _module(module, file)
        entry: Any = modules[module]
        try:
            for part in qualname.split("."):
                entry = getattr(entry, part)
        except AttributeError:
            raise WorkflowLoadError(f"{file} has no {qualname} any more.") from None
        found.append(definition_of(entry))
    return found


def import_from_beside(file: str | Path) -> None:
    """Let an app's file import what stands beside it, as Python does for a program that it runs."""
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    app_code.note_beside(folder)


def is_file_of(file: Path, code_hash: str) -> bool:
    """Whether a file is, now, the whole of the bundle of that hash."""
    try:
        return hash_of_files({file.name: file.read_bytes()}) == code_hash
    except OSError:
        return False


def load_unpacked(folder: Path, code_hash: str) -> list[WorkflowDefinition]:
    """Import an unpacked bundle here, and give its workflows.

    Its folder comes first on `sys.path`, so one interpreter can hold one bundle.

    Raises:
        WorkflowLoadError: it does not import, or a workflow is not as it must be.
    """
    sys.dont_write_bytecode = True  # the folder is read-only
    sys.path.insert(0, str(folder))
    app_code.note_folder(str(folder))
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    entry = entry_of(names)
    package, _, init = entry.partition("/")
    module = load_file(folder / entry, package if init else "")
    return definitions_of(module, code_hash, folder)


def _module(name: str, file: str) -> ModuleType:
    if name != "__main__":
        try:
            return importlib.import_module(name)
        except ImportError:
            pass  # loaded from its file under a name of ours
        except Exception as error:
            raise WorkflowLoadError(f"{file}: {type(error).__name__}: {error}") from error
    return load_file(file)
