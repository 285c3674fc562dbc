"""Which modules of this process are code of apps: no import finds them elsewhere.

A body that runs as a Ray task must take the code that it calls along with it.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

_APP_FILE = "toque_app_"
_folders: set[str] = set()
_beside: set[str] = set()


def note_folder(folder: str) -> None:
    """All modules whose files are in that folder are code of an app."""
    _folders.add(os.path.join(folder, ""))


def note_beside(folder: str) -> None:
    """What an import finds in that folder itself is code of an app, though not all that is below.

    It is a folder of the author's: a virtual environment or another project may be in there.
    """
    _beside.add(os.path.join(folder, ""))


def app_modules() -> list[ModuleType]:
    """The modules loaded so far that are code of apps."""
    return [module for name, module in list(sys.modules.items()) if _is_app(name, module)]


def _is_app(name: str, module: ModuleType) -> bool:
    if name.startswith(_APP_FILE):
        return True
    file = getattr(module, "__file__", None) or ""
    if any(file.startswith(folder) for folder in _folders):
        return True
    first = name.partition(".")[0]
    found = (file[len(folder) :] for folder in _beside if file.startswith(folder))
    return first != "toque" and any(
        rest == f"{first}.py" or rest.startswith(os.path.join(first, "")) for rest in found
    )
