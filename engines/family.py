"""What an instance tells its relatives: its parent that it is there and how it ended, its children
that its run is over.

Between `keeping` and `phases`; `parenting` is what they tell it. Each message is a row in the
commit of what it tells (outbox), and does nothing the second time, so nobody has to note what was
taken.

The parent has a row for each child from the commit on that lets it be made until it hears how it
ended, also when its own run is over by then: a restart from a step may still want to know. A child
that says it is there, and finds no row, or one that is let go, is an orphan: its parent's run ended
while it was being made.
"""

from __future__ import annotations

from ..runtime.codec import pack
from ..runtime.ids import EntityRef
from .child_calls import ABANDON_IT, ordinal_of
from .failures import RecordedError
from .journal import CHILD_END, ChildEnd, ChildRow, Instance
from .keeping import KeptInstance
from .ports import ENGINE_KIND


class FamilyInstance(KeptInstance):
    """See the module's description."""

    # --- as a child -------------------------------------------------------------------------

    def _greet_parent(self, instance: Instance) -> None:
        """Tell the parent that this child is there."""
        parent = instance.parent
        if parent is not None:
            self._rows.tell(
                EntityRef(ENGINE_KIND, parent.key),
                "child_made",
                parent.call,
                self.ctx.ref.key,
                parent.on_end,
            )

    def _tell_parent(
        self, instance: Instance, status: str, output: bytes | None, error: RecordedError | None
    ) -> None:
        """Tell the parent how this child has ended, once; the two have parted then."""
        parent = instance.parent
        if parent is None or instance.is_detached:
            return
        instance.is_detached = True
        end = self._rows.seal.close(pack(ChildEnd(status, output, error)))
        self._rows.tell(EntityRef(ENGINE_KIND, parent.key), "child_ended", parent.call, end)

    # --- as a parent ------------------------------------------------------------------------

    def _let_go(self, call: str, child: ChildRow | None) -> None:
        """A child is not wanted any more: it is to end as it was told. Its end is still heard."""
        if child is not None and not child.is_let_go:
            child.is_let_go = True
            self._rows.put_child(call, child)
            self._tell_child(child.key, call, child.on_end)

    def _tell_child(self, key: str, call: str, on_end: str) -> None:
        """That its parent wants it no more. One that is not known to exist will ask."""
        if key and on_end != ABANDON_IT:
            self._rows.tell(EntityRef(ENGINE_KIND, key), "parent_ended", self.ctx.ref.key, call)

    def _let_children_go(self) -> None:
        """The run is over."""
        if self._existing().children:
            for call, child in self._rows.children():
                self._let_go(call, child)

    def _drop_children(self, first: int = 1) -> None:
        """What the run did from a record on is forgotten: its children, and how they ended."""
        instance = self._existing()
        if instance.children:
            for call, child in self._rows.children():
                if child.ordinal >= first:
                    self._drop_child(instance, call)
                    if not child.is_let_go:
                        self._tell_child(child.key, call, child.on_end)
        if not instance.events_buffered:
            return
        for seq, event_type, _ in self._rows.events():
            if (
                event_type.startswith(CHILD_END)
                and ordinal_of(event_type) >= first
                and self._rows.has_event(seq)
            ):
                self._rows.delete_event(seq)
                instance.events_buffered -= 1
                self._is_changed = True

    def _drop_child(self, instance: Instance, call: str) -> None:
        self._rows.drop_child(call)
        instance.children -= 1
        self._is_changed = True
