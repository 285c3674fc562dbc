"""`toque doctor`: each fault, made for real in a directory, is named, mended, and then gone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toque import workflow
from toque.api import cli_doctor
from toque.api.cli import app
from toque.api.cli_config import DevFile, write_dev_file
from toque.api.doctor import KINDS, judge_running
from toque.api.doctor_sqlite import Survey, mend
from toque.api.first_token import MARK
from toque.api.wiring import embedded, start_embedded
from toque.engines.archive import hash_of_files
from toque.engines.journal import Instance, Record, record_from_row
from toque.runtime import limits
from toque.runtime.clock import SystemClock
from toque.runtime.datadir import DataDir
from toque.runtime.errors import DataDirFormat, DataDirInUse
from toque.runtime.pages_sqlite import changing

HASH = "ab" * 32


@workflow
async def quick(event: Any, step: Any) -> int:
    return int(await step.do("one", lambda: 1))


@workflow
async def sleeps(event: Any, step: Any) -> int:
    await step.sleep("long", "1 hour")
    return 2


@workflow
async def awaits(event: Any, step: Any) -> int:
    await step.wait_for_event("never", "never", timeout="1 day")
    return 3


@workflow
async def late(event: Any, step: Any) -> int:
    return 4


FLOWS = [quick, sleeps, awaits, late]


def look_at(data: Path, fix: bool) -> list[Any]:
    """The faults; what is only good to know is left out."""
    return [each for each in cli_doctor.look_at(data, fix) if not each.note]


def notes_of(data: Path, fix: bool = False) -> list[Any]:
    return [each for each in cli_doctor.look_at(data, fix) if each.note]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped directory: one has ended, one sleeps, one awaits an event, one is queued."""
    folder = tmp_path_factory.mktemp("doctor") / "data"

    async def parked(client: Any, name: str) -> None:
        await client.create_instance(name, "a")
        while (await client.instance(name, "a").status()).status != "waiting":
            await asyncio.sleep(0)

    async def main() -> None:
        async with embedded(folder, FLOWS) as runtime:
            client = runtime.client()
            assert (await client.run_instance("quick", "ended")).success
            await parked(client, "sleeps")
            await parked(client, "awaits")
        async with embedded(folder, FLOWS, running_max=0) as runtime:
            client = runtime.client()
            await client.create_instance("late", "queued")
            async with asyncio.timeout(60):
                while (await client.instance("late", "queued").why()).slot.state != "queued":
                    await asyncio.sleep(0)

    asyncio.run(main())
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "data")
    return tmp_path / "data"


def sql(data: Path, shard: str, text: str, params: tuple[Any, ...] = ()) -> list[Any]:
    with changing(data / "shards" / f"{shard}.sqlite") as store:
        return store.execute(text, params).fetchall()


def key_of(data: Path, name: str, instance_id: str) -> str:
    (uuid,) = sql(data, "c0", "SELECT uuid FROM account_workflows WHERE name = ?", (name,))[0]
    return f"default/{uuid}/{instance_id}"


def chef_of(data: Path, key: str) -> str:
    ((number,),) = sql(data, "d0", "SELECT souschef FROM instances WHERE entity = ?", (key,))
    return f"{key.rsplit('/', 1)[0]}/{number}"


def ends(data: Path, name: str, instance_id: str, how: str = "complete") -> None:
    """The instance runs to its end."""

    async def main() -> None:
        async with embedded(data, FLOWS, running_max=1) as runtime:
            status = await runtime.client().instance(name, instance_id).wait(60)
            assert status.status == how, status

    asyncio.run(main())


# --- faults: each makes one, and gives what must then run to its end ---


def queue_unknown(data: Path) -> tuple[str, str]:
    key = key_of(data, "late", "queued")
    for table in ("souschef_parked", "souschef_order"):
        sql(data, "c0", f"DELETE FROM {table} WHERE key = ?", (key,))
    sql(data, "c0", "UPDATE souschef_state SET live = 0, fresh = 0 WHERE entity = ?",
        (chef_of(data, key),))  # fmt: skip
    sql(data, "d0", "DELETE FROM alarms WHERE key = ?", (key,))
    return "late", "queued"


def queue_gone(data: Path) -> tuple[str, str]:
    key = key_of(data, "late", "queued")
    gone = key_of(data, "late", "never-was")
    row = (chef_of(data, key), gone, "run", 1, 1, 1, "d0")
    sql(data, "c0", "INSERT INTO souschef_held VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    sql(data, "c0", "UPDATE souschef_state SET live = live + 1, target = 1, leased = 1 "
        "WHERE entity = ?", (row[0],))  # fmt: skip
    sql(data, "c0", "INSERT OR REPLACE INTO gatekeeper_leases VALUES "
        "('default', ?, 1, 1, 1, 1, 1, 0)", (row[0],))  # fmt: skip
    return "late", "queued"


def alarm_missing(data: Path) -> tuple[str, str]:
    key = key_of(data, "sleeps", "a")
    sql(data, "d0", "DELETE FROM alarms WHERE key = ?", (key,))
    # an hour passes
    (row,) = sql(data, "d0", "SELECT * FROM instances WHERE entity = ?", (key,))
    instance = Instance.from_row(row)
    instance.wake_ms = 1
    (steps,) = sql(data, "d0", "SELECT * FROM steps WHERE entity = ?", (key,))
    record: Record = record_from_row(steps)
    record.due_ms = 1
    sql(data, "d0", "UPDATE instances SET blob = ? WHERE entity = ?",
        (instance.row(key, "")[-1], key))  # fmt: skip
    sql(data, "d0", "UPDATE steps SET blob = ? WHERE entity = ?", (record.row(key)[-1], key))
    sql(data, "c0", "UPDATE souschef_parked SET wake_ms = 1 WHERE key = ?", (key,))
    return "sleeps", "a"


def alarm_missing_of_a_clearing(data: Path) -> tuple[str, ...]:
    """All that sleeps is to be ended, and nothing goes on with it."""
    key = key_of(data, "sleeps", "a").rsplit("/", 1)[0]
    sql(data, "c0", "INSERT INTO clearings VALUES (?, 'job', 'terminate', '', 1, 0, -1, '', 0)",
        (key,))  # fmt: skip
    return "sleeps", "a", "terminated"


def alarm_missing_of_a_deletion(data: Path) -> None:
    key = key_of(data, "sleeps", "never-was")
    sql(data, "d0", "INSERT INTO tombstones VALUES (?, x'00')", (key,))


def epoch_behind(data: Path) -> tuple[str, str]:
    chef = chef_of(data, key_of(data, "late", "queued"))
    sql(data, "d0", "INSERT OR REPLACE INTO souschef_epochs VALUES ('d0', ?, 50)", (chef,))
    return "late", "queued"


def lease_orphan(data: Path) -> tuple[str, str]:
    sql(data, "c0", "DELETE FROM gatekeeper_leases")
    sql(data, "c0", "INSERT INTO gatekeeper_leases VALUES "
        "('default', 'default/gone/0', 1, 1, 1, 1, 1, 0)")  # fmt: skip
    return "late", "queued"  # with a limit of 1 the lost slot is all there is


def lease_short(data: Path) -> None:
    key = key_of(data, "awaits", "a")
    chef = chef_of(data, key)
    sql(data, "c0", "INSERT INTO souschef_held VALUES (?, ?, 'run', 1, 1, 1, 'd0')", (chef, key))
    sql(data, "c0", "DELETE FROM gatekeeper_leases WHERE souschef = ?", (chef,))


def rows_orphan(data: Path) -> None:
    sql(data, "d0", "INSERT INTO steps VALUES ('default/u/x', 1, x'00')")
    sql(data, "d0", "INSERT INTO requests VALUES ('default/u/x', 'r', 1, 1, 1)")


def alarm_orphan(data: Path) -> None:
    sql(data, "d0", "INSERT INTO alarms VALUES ('Engine', 'default/u/x', 1, 0)")


def blob_orphan(data: Path) -> None:
    folder = data / "blobs" / "d0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("0" * 64)).write_text("x")


def file_orphan(data: Path) -> None:
    (data / "toque.json.tmp").write_text("x")


def bundle_orphan(data: Path) -> None:
    folder = data / "bundles" / HASH
    folder.mkdir(parents=True)
    for name in ("app.py", "notes.tmp"):  # what was deployed is not ours to judge
        (folder / name).write_text("x")
    folder.chmod(0o500)
    (data / "bundles" / f"{HASH}.zip").write_text("x")


def token_none(data: Path) -> None:
    sql(data, "c0", "INSERT OR REPLACE INTO identity VALUES ('root', 1)")
    (data / MARK).write_text("x")


MENDED: list[Callable[[Path], tuple[str, ...] | None]] = [
    queue_unknown, queue_gone, alarm_missing, alarm_missing_of_a_clearing,
    alarm_missing_of_a_deletion, epoch_behind, lease_orphan, lease_short,
    rows_orphan, alarm_orphan, blob_orphan, file_orphan, bundle_orphan, token_none,
]  # fmt: skip


def test_a_directory_in_order_has_no_faults(data: Path) -> None:
    before = sql(data, "c0", "SELECT epoch FROM shard")
    assert look_at(data, fix=True) == []
    assert sql(data, "c0", "SELECT epoch FROM shard") == before


@pytest.mark.parametrize("fault", MENDED, ids=lambda fault: fault.__name__)
def test_a_fault_is_named_mended_and_gone(
    data: Path, fault: Callable[[Path], tuple[str, ...] | None]
) -> None:
    then = fault(data)
    code = fault.__name__.partition("_of_")[0].replace("_", ".", 1)
    found = look_at(data, fix=False)
    assert {each.code for each in found} == {code}
    assert not any(each.fixed for each in found)
    assert all(each.meaning == KINDS[code].meaning and each.fix for each in found)
    assert [each.code for each in look_at(data, fix=False)] == [each.code for each in found]
    mended = look_at(data, fix=True)
    assert {each.code for each in mended} == {code}
    assert all(each.fixed for each in mended)
    assert look_at(data, fix=True) == []
    if then is not None:
        ends(data, *then)


def store_missing(data: Path) -> None:
    (data / "shards" / "d0.sqlite").unlink()


def store_damaged(data: Path) -> None:
    path = data / "shards" / "d0.sqlite"
    raw = bytearray(path.read_bytes())
    raw[4096 * 2 : 4096 * 6] = b"\xff" * 4096 * 4
    path.write_bytes(raw)


def store_foreign(data: Path) -> None:
    shutil.copy(data / "shards" / "c0.sqlite", data / "shards" / "d0.sqlite")


def settings_damaged(data: Path) -> None:
    (data / "toque.json").write_text("{")


def outbox_stuck(data: Path) -> None:
    sql(data, "c0", "UPDATE shard SET epoch = 10")
    sql(data, "c0", "INSERT INTO outbox VALUES ('Gone', 'x', 'Account', 'default', ?, 'm', x'90')",
        (1 << 40,))  # fmt: skip


def blob_missing(data: Path) -> None:
    key = key_of(data, "quick", "ended")
    sql(data, "d0", "INSERT INTO blobs VALUES (?, 1, ?)", (key, "1" * 64))


def bundle_missing(data: Path) -> None:
    row = ("default", "app", HASH, 1, 1, b"")
    sql(data, "c0", "INSERT INTO account_scripts VALUES (?, ?, ?, ?, ?, ?)", row)


def token_orphan(data: Path) -> None:
    sql(data, "c0", "INSERT INTO identity_tokens VALUES "
        "('root', 'id', 'nobody', 'n', 'read', x'00', 1, 0, 0)")  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [store_missing, store_damaged, store_foreign, settings_damaged, outbox_stuck, blob_missing,
     bundle_missing, token_orphan],
    ids=lambda fault: fault.__name__,
)  # fmt: skip
def test_what_can_not_be_mended_is_named_and_left(
    data: Path, fault: Callable[[Path], None]
) -> None:
    fault(data)
    code = fault.__name__.replace("_", ".", 1)
    for fix in (False, True):
        found = look_at(data, fix)
        assert {each.code for each in found} == {code}
        assert not any(each.fixed for each in found)


def test_a_message_that_nobody_takes_is_counted_dated_and_addressed(data: Path) -> None:
    sql(data, "c0", "UPDATE shard SET epoch = 10")
    for n, epoch in enumerate((5, 2, 4)):
        sql(data, "c0", "INSERT INTO outbox VALUES ('Gone', 'x', 'Account', ?, ?, 'm', x'90')",
            (f"a{n}", epoch << 40))  # fmt: skip
    (found,) = look_at(data, fix=False)
    assert (found.code, found.place) == ("outbox.stuck", "c0 Gone(x).m")
    assert found.detail == (
        "3 messages; the oldest, of Account(a1), was written 8 openings of c0 ago"
    )


def test_alarms_that_wait_for_a_start_are_told_and_are_no_fault(data: Path) -> None:
    key = key_of(data, "sleeps", "a")
    due_ms = SystemClock().now_ms() - 7_200_000
    sql(data, "d0", "UPDATE alarms SET due_ms = ? WHERE key = ?", (due_ms, key))
    (found,) = [each for each in notes_of(data) if each.code == "alarm.overdue"]
    assert found.place == "d0 Engine"
    assert re.match(r"\d+ alarms, the oldest due 72\d\d s ago \(20\d\d-", found.detail)
    told = CliRunner().invoke(app, ["doctor", "--data", str(data)])
    assert told.exit_code == 0
    assert "alarm.overdue" in told.stdout
    assert told.stdout.endswith("Nothing is wrong.\n")


def test_an_alarm_whose_handler_fails_again_and_again_is_a_fault(data: Path) -> None:
    key = key_of(data, "sleeps", "a")
    sql(data, "d0", "UPDATE alarms SET retries = 2 WHERE key = ?", (key,))
    assert look_at(data, fix=False) == []
    sql(data, "d0", "UPDATE alarms SET retries = 7 WHERE key = ?", (key,))
    (found,) = look_at(data, fix=True)
    assert (found.code, found.place) == ("alarm.failing", f"d0 Engine({key})")
    assert found.detail.startswith("7 times; it is tried again at 20")


def test_code_of_older_versions_goes_when_nothing_needs_it_any_more(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "app.py"

    async def main(version: int, *, runs: bool, deletes: bool = False) -> str:
        file.write_text(VERSIONED.format(version))
        async with start_embedded(data, app_path=file) as runtime:
            client = runtime.client()
            if deletes:
                await client.instance("numbered", "v1").delete()
            if runs:
                status = await client.run_instance("numbered", f"v{version}", timeout=60)
                assert status.output == version
        return hash_of_files({"app.py": file.read_bytes()})

    first = asyncio.run(main(1, runs=True))
    second = asyncio.run(main(2, runs=False))
    third = asyncio.run(main(3, runs=False))
    bundles = data / "bundles"

    def unused() -> list[str]:
        return [Path(each.place).name for each in notes_of(data) if each.code == "bundle.unused"]

    def some_days_pass() -> None:
        then_s = (SystemClock().now_ms() - 2 * limits.BUNDLE_LINGER_MS) / 1_000
        for path in bundles.iterdir():
            os.utime(path, (then_s, then_s))

    assert unused() == [], "nothing is old enough"
    some_days_pass()
    assert unused() == [second], "the first has an instance, the third is the newest"
    assert [each.fixed for each in notes_of(data, fix=True) if each.code == "bundle.unused"] == [
        True
    ]
    assert {path.name.split(".")[0] for path in bundles.iterdir()} == {first, third}
    assert look_at(data, fix=False) == []

    async def restarts() -> None:
        file.write_text(VERSIONED.format(3))
        async with start_embedded(data, app_path=file) as runtime:
            old = runtime.client().instance("numbered", "v1")
            await old.restart()
            assert (await old.wait(60)).output == 1, "on the code that it began with"

    asyncio.run(restarts())
    assert asyncio.run(main(2, runs=True)) == second, "deployed again it is there again"
    asyncio.run(main(3, runs=False, deletes=True))
    some_days_pass()
    assert unused() == [first], "old, and its instance is gone; the second has one now"


VERSIONED = """
import toque


@toque.workflow
async def numbered(event, step):
    return {}
"""


def test_mending_may_be_killed_at_any_point(data: Path) -> None:
    for fault in (queue_gone, rows_orphan, blob_orphan, file_orphan):
        fault(data)
    directory = DataDir.open(data)
    survey = Survey(directory.path, directory.placement, SystemClock().now_ms())
    found = survey.findings()
    assert len(found) > 4
    mend(directory.path, found[:2])  # and no more
    mend(directory.path, found[:2])
    directory.close()
    assert {each.fixed for each in look_at(data, fix=True)} == {True}
    assert look_at(data, fix=False) == []
    ends(data, "late", "queued")


def test_what_runs_is_not_mended_and_what_is_no_directory_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOQUE_URL", raising=False)
    directory = DataDir.open(data)
    try:
        told = CliRunner().invoke(app, ["doctor", "--data", str(data)])
        assert (told.exit_code, "--url" in told.stderr) == (1, True), told.stderr
        with pytest.raises(DataDirInUse):
            look_at(data, fix=True)
    finally:
        directory.close()
    with pytest.raises(DataDirFormat, match="no data directory"):
        look_at(tmp_path, fix=False)
    assert sorted(tmp_path.iterdir()) == [data]


def test_a_named_directory_in_use_is_never_another_server(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is asked is the server that holds the directory, or nobody."""
    asked: list[tuple[str, str | None]] = []

    async def ask(url: str, token: str | None, *_: Any) -> list[Any]:
        asked.append((url, token))
        return []

    monkeypatch.setattr(cli_doctor, "_ask", ask)
    monkeypatch.setenv("TOQUE_URL", "http://other.example")
    monkeypatch.setenv("TOQUE_TOKEN", "others")
    words = ["doctor", "--data", str(data)]
    directory = DataDir.open(data)
    try:
        told = CliRunner().invoke(app, words)
        assert (told.exit_code, asked) == (1, []), told.output
        assert "in use" in told.stderr
        assert "--url" in told.stderr
        write_dev_file(data, DevFile("http://127.0.0.1:1", "own"))
        told = CliRunner().invoke(app, words)
        assert (told.exit_code, asked) == (0, [("http://127.0.0.1:1", "own")]), told.output
        assert "http://127.0.0.1:1" in told.stderr
        told = CliRunner().invoke(app, [*words, "--url", "http://named.example"])
        assert (told.exit_code, asked[1:]) == (0, [("http://named.example", "others")])
        assert CliRunner().invoke(app, [*words, "--fix"]).exit_code == 1
        assert len(asked) == 2
    finally:
        directory.close()


def test_the_command_tells_and_says_by_its_exit_code(data: Path) -> None:
    rows_orphan(data)
    words = ["doctor", "--data", str(data)]
    told = CliRunner().invoke(app, [*words, "-o", "json"])
    assert told.exit_code == 1
    assert {each["code"] for each in json.loads(told.stdout)} == {"rows.orphan"}
    fixed = CliRunner().invoke(app, [*words, "--fix"])
    assert (fixed.exit_code, "done" in fixed.stdout) == (0, True)
    fine = CliRunner().invoke(app, words)
    assert (fine.exit_code, fine.stdout) == (0, "Nothing is wrong.\n")


def test_a_server_that_runs_is_judged_by_what_it_tells() -> None:
    figures = {"d0": {"alarm_late_ms_max": 70_000, "outbox_waiting": 5, "threads_hung": 1}}
    found = judge_running({"d0": True, "d1": False}, figures)
    assert [(each.code, each.place) for each in found] == [
        ("shard.down", "d1"), ("shard.late", "d0"), ("threads.hung", "d0"),
    ]  # fmt: skip


def test_every_fault_stands_in_the_documents() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    for code, kind in KINDS.items():
        assert f"| `{code}` | {kind.meaning} | {kind.mending} |" in text


def test_looking_at_many_that_are_parked_takes_no_memory_for_each(
    made: Path, tmp_path: Path
) -> None:
    """Millions may wait."""
    data = shutil.copytree(made, tmp_path / "data")
    with changing(data / "shards" / "c0.sqlite") as store:
        chef, key = store.execute("SELECT entity, key FROM souschef_parked").fetchone()
        row = store.execute("SELECT * FROM souschef_parked WHERE key = ?", (key,)).fetchone()
        store.execute("BEGIN")
        marks = ", ".join("?" * len(row))
        others = ((f"{chef}{n}", *row[1:]) for n in range(20_000))
        store.executemany(f"INSERT INTO souschef_parked VALUES ({marks})", others)
        store.execute("COMMIT")
    with closing(DataDir.open(data)) as directory:
        survey = Survey(data, directory.placement, SystemClock().now_ms())
        tracemalloc.start()
        try:
            survey.findings()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 2 * limits.MIB


def test_an_address_where_nobody_answers_is_told_plainly() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: nobody else can either
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        told = CliRunner().invoke(app, ["doctor", "--url", url])
    assert told.exit_code != 0
    assert f"no server answers at {url}: [Errno" in told.stderr
    assert "urlopen" not in told.stderr
