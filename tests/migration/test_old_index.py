"""The index of AccountOld: its four tables always say the same, whatever reports come when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.souschef.rows import DictRows
from toque.engines.ports import StatusReport
from toque.engines.status import FINISHED, SLOT_STATES
from toque.engines.views import CreateRequest, InstanceView
from toque.migration.old_index import OldIndex
from toque.migration.old_rows import COUNTS, ENDS, INDEX, UNBORN, Entry, entry_of, queued_view
from toque.runtime import limits
from toque.runtime.payload_codec import NO_CODECS
from toque.runtime.tables import Change

OLD = "mill/-/old"
SEAL = NO_CODECS.seal("mill")
REQUEST = CreateRequest("w", "W", "v", "h", b"1", "r", 0, "api", 0)


class Rows(DictRows):
    """Rows in a dict that takes all changes of a call or none."""

    def write_all(self, changes: Iterable[Change]) -> None:
        for table, key, row in list(changes):
            if row is None:
                self.delete(table, key)
            else:
                self.put(table, row)

    def scan(self, table: Any, prefix: Any = (), *, reverse: bool = False, **more: Any) -> Any:
        if not reverse:
            return super().scan(table, prefix, **more)
        return super().scan(table, prefix)[::-1][: more["limit"]]


def entry(uuid: str, instance_id: str, run_id: str, now_ms: int) -> Entry:
    return Entry(
        uuid, instance_id, now_ms, "queued", None, None, now_ms, "v", "api", True, run_id, 0, 0,
        1_000, 2_000, "r", 1,
    )  # fmt: skip


def view_of(found: Entry, status: str) -> InstanceView:
    return msgspec.structs.replace(queued_view(found, REQUEST), status=status)


def key_of(found: Entry) -> str:
    return f"mill/{found.uuid}/{found.id}"


def check(rows: Rows, index: OldIndex) -> None:
    """The tables agree, and memory with them."""
    entries = [entry_of(row) for row in rows.all(INDEX)]
    counts: dict[str, Counter[str]] = {}
    for each in entries:
        counts.setdefault(each.uuid, Counter())[each.counted] += 1
    kept = {uuid: msgspec.json.decode(text) for _, uuid, text in rows.all(COUNTS)}
    assert kept == {uuid: dict(count) for uuid, count in counts.items()}
    places = {(OLD, e.created_ms, e.uuid, e.id) for e in entries if e.unborn}
    assert {row[:4] for row in rows.all(UNBORN)} == places
    ends = {(OLD, e.expires_ms, e.uuid, e.id) for e in entries if e.status in FINISHED}
    assert set(rows.all(ENDS)) == ends
    anew = OldIndex(rows, OLD, SEAL)
    for one in (index, anew):
        assert (one.size, one.unborn) == (len(entries), len(places))
        assert one.ended == len(ends)
        live = {e.uuid for e in entries if e.status not in FINISHED}
        assert (one.workflows, one.weight) == (len(live), max(1, len(live)))
        assert one.last_end_ms == (max(e[1] for e in ends) - limits.V1_ID_LINGER_MS if ends else 0)


@pytest.mark.parametrize("seed", range(4))
def test_the_tables_agree_after_each_change(seed: int) -> None:
    drawn = random.Random(seed)
    rows = Rows()
    index = OldIndex(rows, OLD, SEAL)
    now_ms, runs = 1_000, 0
    said: list[StatusReport] = []
    statuses = sorted(SLOT_STATES)
    for step in range(1_500):
        now_ms += drawn.randrange(40)
        uuid, instance_id = drawn.choice("uvw"), f"{drawn.randrange(9)}"
        key = f"mill/{uuid}/{instance_id}"
        known = index.get(key)
        what = drawn.random()
        if known is None or what < 0.05:
            runs += 1
            index.add(entry(uuid, instance_id, f"run-{runs}", now_ms), REQUEST)
        elif what < 0.15:
            index.born(key, view_of(known, drawn.choice(("queued", "running", "complete"))))
        elif what < 0.2:
            index.drop(key)
        elif what < 0.3:
            index.started(key, known.run_id, now_ms)
        elif what < 0.35:
            index.sweep(now_ms)
        elif what < 0.5 and said:
            index.on_reports([drawn.choice(said)])  # late, or once more
        else:
            runs += what > 0.95
            run_id = f"run-{runs}" if what > 0.95 else known.run_id
            status = drawn.choice([*statuses, "deleted"])
            state = SLOT_STATES.get(status, "ended")  # type: ignore[call-overload]
            report = StatusReport(
                key, run_id, known.seq + 1, state, 1, True, now_ms, 0, status, "d0"
            )
            said.append(report)
            index.on_reports([report])
            found = index.get(key)
            if known.unborn and state == "ended" and run_id != known.run_id:
                assert found == known
            else:
                assert (found is None) == (status == "deleted"), step
                assert found is None or (found.status, found.unborn) == (status, False)
        check(rows, index)


def test_an_unborn_instance_keeps_its_create_until_it_is_born() -> None:
    rows = Rows()
    index = OldIndex(rows, OLD, SEAL)
    made = entry("u", "i", "run", 5)
    index.add(made, REQUEST)
    assert index.request_of(made) == REQUEST
    assert index.counts("u") == {"queued": 1}
    assert index.unborn_page(None, 10) == [((OLD, 5, "u", "i"), key_of(made))]
    index.born(key_of(made), view_of(made, "queued"))
    assert index.unborn_page(None, 10) == []
    assert (index.counts("u"), index.unborn_of("u")) == ({"queued": 1}, 0)


def test_late_reports_of_an_older_run_change_nothing() -> None:
    rows = Rows()
    index = OldIndex(rows, OLD, SEAL)
    made = entry("u", "i", "new", 500)
    index.add(made, REQUEST)
    late = StatusReport(key_of(made), "old", 9, "ended", 1, True, 400, 0, "complete", "d0")
    index.on_reports([late])
    assert index.get(key_of(made)) == made
    ahead = msgspec.structs.replace(late, since_ms=600, status="deleted")  # by another clock
    index.on_reports([ahead])
    assert index.get(key_of(made)) == made
    index.born(key_of(made), msgspec.structs.replace(view_of(made, "queued"), modified_ms=601))
    index.on_reports([ahead])
    assert index.get(key_of(made)) is not None
    nobody = StatusReport("mill/u/none", "old", 9, "running", 1, True, 900, 0, "running", "d0")
    index.on_reports([nobody])
    check(rows, index)


def test_who_was_restarted_before_its_birth_was_known_is_not_kept_for_ever() -> None:
    rows = Rows()
    index = OldIndex(rows, OLD, SEAL)
    made = entry("u", "i", "first", 500)
    index.add(made, REQUEST)
    end = StatusReport(key_of(made), "second", 2, "ended", 1, True, 700, 0, "complete", "d0")
    index.on_reports([end])  # it can't be told from one of an instance before it
    view = msgspec.structs.replace(view_of(made, "complete"), run_id="second", modified_ms=700)
    index.born(key_of(made), view)
    check(rows, index)
    assert (index.ended, index.last_end_ms) == (1, 700 + 1_000)
