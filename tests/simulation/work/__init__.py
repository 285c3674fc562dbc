"""All work items, a file each: a new file with an `ITEM` in it is a new work item."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .base import Work

ITEMS: dict[str, type[Work]] = {
    module.ITEM.name: module.ITEM
    for name in sorted(found.name for found in iter_modules(__path__))
    if hasattr(module := import_module(f"{__name__}.{name}"), "ITEM")
}
