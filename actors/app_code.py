"""Which modules of this process are code of apps: no import finds them elsewhere.

A body that runs as a Ray task must take the code that it calls along with it.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

_APP_FILE = "toque_app_"
_folders: set[str] = set()


def note_folder(folder: str) -> None:
    """All modules whose files are in that folder are code of an app."""
    _folders.add(os.path.join(folder, ""))


def app_modules() -> list[ModuleType]:
    """The modules loaded so far that are code of apps."""
    return [module for name, module in list(sys.modules.items()) if _is_app(name, module)]


def _is_app(name: str, module: ModuleType) -> bool:
    if name.startswith(_APP_FILE):
        return True
    file = getattr(module, "__file__", None) or ""
    if name.partition(".")[0] == "toque" or _INSTALLED & {*file.split(os.sep)}:
        return False  # a virtual environment, or toque's own source, may be in the folder
    return any(file.startswith(folder) for folder in _folders)


_INSTALLED = {"site-packages", "dist-packages"}
