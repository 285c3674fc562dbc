"""An app: the workflows and entity classes that a runtime is started with.

From a Python file, or from objects that a program gives. The code of a file is stored as a bundle
in the data directory, so that instances go on with the code that they began with after the file
has been edited. Objects have no such code: they go on with whatever has their workflow's name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..engines.archive import Bundle
from ..engines.bundle import (
    bundle_of_definitions,
    bundle_of_file,
    check_can_move,
    import_from_beside,
    is_file_of,
)
from ..engines.bundle_store import BundleStore, manifest_of, read_app
from ..engines.workflow import (
    ACTOR,
    WorkflowDefinition,
    check_has_run,
    check_names,
    definition_of,
    definitions_of,
    load_file,
)
from ..runtime.entity import DurableObject
from ..runtime.errors import BundleInvalid, WorkflowLoadError


class App:
    """The workflows and entity classes of a file, or those given as objects.

    Attributes:
        definitions, objects: what it holds.
        script: what it is called where its workflows are registered.
        bundle: where a worker finds its code; see `engines.bundle`.
        code: all of its code, if it is a file's; None: it can't be stored.
    """

    def __init__(
        self,
        definitions: list[WorkflowDefinition],
        objects: list[type[DurableObject]],
        script: str,
        bundle: dict[str, Any],
        code: Bundle | None = None,
    ) -> None:
        self.definitions = definitions
        self.objects = objects
        self.script = script
        self.bundle = bundle
        self.code = code

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        store: BundleStore | None = None,
        code_hash: str | None = None,
    ) -> App:
        """Import a file, which may import what stands beside it.

        Args:
            path: the file.
            store, code_hash: the code that is wanted; if the file has been edited since it had
                that hash, what is stored of it is imported in its place.

        Raises:
            WorkflowLoadError: it does not import, or defines neither workflow nor entity.
        """
        file = Path(path)
        import_from_beside(file)
        if store is not None and code_hash is not None and not is_file_of(file, code_hash):
            file = store.unpacked(code_hash) / file.name
        try:
            code = read_app(file)
        except (BundleInvalid, OSError) as error:
            raise WorkflowLoadError(str(error)) from None
        module = load_file(file)
        definitions = definitions_of(module, code.code_hash)
        app = cls(definitions, _objects_of(module), file.name, bundle_of_file(file), code)
        if not app.definitions and not app.objects:
            check_has_run(module)
            raise WorkflowLoadError(
                f"{path} defines no workflow. Write `class Order(WorkflowEntrypoint): async def "
                "run(self, event, step): ...`, or decorate a function with @workflow."
            )
        return app

    def keep_in(self, store: BundleStore) -> None:
        """Store its code, so that its instances can go on with it once the file has changed."""
        if self.code is not None and self.definitions:
            store.put(self.code, manifest_of(self.definitions))
            file, code_hash = self.bundle["file"], self.code.code_hash
            self.bundle = bundle_of_file(file, code_hash, str(store.folder))

    @classmethod
    def from_objects(cls, entries: Iterable[Any]) -> App:
        """From workflow classes, decorated functions and `DurableObject` classes."""
        objects = []
        definitions = []
        for entry in entries:
            if inspect.isclass(entry) and issubclass(entry, DurableObject):
                objects.append(entry)
            else:
                definitions.append(definition_of(entry))
        check_names(definitions)
        for definition in definitions:
            if definition.placement == ACTOR:
                check_can_move(definition)
        return cls(definitions, objects, "embedded", bundle_of_definitions(definitions))


def _objects_of(module: ModuleType) -> list[type[DurableObject]]:
    return [
        entry
        for entry in vars(module).values()
        if inspect.isclass(entry)
        and issubclass(entry, DurableObject)
        and entry.__module__ == module.__name__
    ]
