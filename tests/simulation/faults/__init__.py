"""All faults, a file each: a new file with a `FAULT` in it is a new fault."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .base import Fault

FAULTS: dict[str, Fault] = {
    module.FAULT.name: module.FAULT
    for name in sorted(found.name for found in iter_modules(__path__))
    if hasattr(module := import_module(f"{__name__}.{name}"), "FAULT")
}
