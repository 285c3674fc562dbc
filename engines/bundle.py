"""How a worker finds the code that a shard has: by file, or by the names of what was given.

Plain data (it travels in a `WorkerSpec`); loading it imports the files anew, so code never
travels. What is defined inside a function, or typed into a shell, has no file and can't be found.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..runtime.errors import WorkflowLoadError
from .workflow import WorkflowDefinition, definition_of, definitions_of, load_file


def bundle_of_file(path: str | Path) -> dict[str, Any]:
    """The bundle of an app file."""
    return {"file": str(Path(path).resolve()), "sys_path": sys.path[:]}


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


def _module(name: str, file: str) -> ModuleType:
    if name != "__main__":
        try:
            return importlib.import_module(name)
        except ImportError:
            pass  # loaded from its file under a name of ours
        except Exception as error:
            raise WorkflowLoadError(f"{file}: {type(error).__name__}: {error}") from error
    return load_file(file)
