"""Code that changes under instances: they end on what they began with, new ones on the new."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from toque.api.doctor import judge_running
from toque.api.shard_code import bundles_of
from toque.api.wiring import Runtime, embedded, start_embedded
from toque.engines import life
from toque.engines.archive import hash_of_files
from toque.engines.bundle_store import BundleStore
from toque.runtime.ids import EntityRef

OLD = """
import os
import toque


class Order(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        pay = await step.do("pay", lambda: f"paid {event.payload}")
        await step.wait_for_event("ok", "ok", timeout="1 hour")
        return [pay, await step.do("ship", lambda: "shipped"), os.getpid()]


class Where(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        return os.getpid()


class Secret(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        return os.environ.get("A_SECRET")
"""
NEW = """
import os
import toque


class Order(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("check", lambda: True)
        await step.wait_for_event("go", "ok", timeout="1 hour")
        return ["new", os.getpid()]
"""
WAIT_S = 40


def app_of(folder: Path, code: str) -> Path:
    path = folder / "app.py"
    path.write_text(code)
    return path


async def answered(runtime: Runtime, instance_id: str, account: str = "default") -> Any:
    """What an instance gives once its event has come."""
    handle = runtime.client(account).instance("Order", instance_id)
    await handle.send_event("ok")
    status = await handle.wait(WAIT_S)
    assert status.status == "complete", status.error
    return status.output


async def waiting(runtime: Runtime, instance_id: str, account: str = "default") -> None:
    """An instance that has run as far as its event."""
    handle = await runtime.client(account).create_instance("Order", instance_id, 7)
    async for event in handle.events():
        if event.type == "workflow_waiting":
            return


async def test_an_edit_and_a_restart_leave_old_instances_on_the_old_code(tmp_path: Path) -> None:
    data = tmp_path / "data"
    path = app_of(tmp_path, OLD)
    async with start_embedded(data, app_path=path) as runtime:
        await waiting(runtime, "old")
        mine = (await runtime.client().run_instance("Where", timeout=WAIT_S)).output
    app_of(tmp_path, NEW)
    async with start_embedded(data, app_path=path) as runtime:
        await waiting(runtime, "new")
        assert await answered(runtime, "new") == ["new", mine], "in this very process"
        pay, ship, pid = await answered(runtime, "old")
        assert (pay, ship) == ("paid 7", "shipped")
        assert pid != mine, "in a worker"
        left = await runtime.client().run_instance("Where", timeout=WAIT_S)
        assert left.output == pid, "what the new code has no more goes on as it was, in the same"
        view = await runtime.client().instance("Order", "old").status()
        assert not view.error


async def test_without_its_code_an_instance_waits_until_it_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life.limits, "CODE_RETRY_MS", 50)
    data = tmp_path / "data"
    path = app_of(tmp_path, OLD)
    code_hash = hash_of_files({"app.py": OLD.encode()})
    async with start_embedded(data, app_path=path) as runtime:
        await waiting(runtime, "old")
    store = bundles_of(data)
    bundle, manifest = store.get(code_hash), store.manifest(code_hash)
    assert manifest is not None
    shutil.rmtree(store.folder)
    app_of(tmp_path, NEW)
    async with start_embedded(data, app_path=path) as runtime:
        handle = runtime.client().instance("Order", "old")
        await handle.send_event("ok")
        told: list[str] = []
        while not told:
            told = [r.error.message for r in (await handle.why()).reasons if r.error is not None]
        assert f"the code {code_hash[:12]} is not stored here" in told[0]
        BundleStore(store.folder).put(bundle, manifest)
        status = await handle.wait(WAIT_S)
        assert status.output[:2] == ["paid 7", "shipped"]


async def test_each_account_has_an_interpreter_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the server")
    path = app_of(tmp_path, OLD)
    async with start_embedded(tmp_path / "data", app_path=path) as runtime:
        pids = []
        for account in ("default", "a", "b"):
            await runtime.deploy(account, None)
            pids += [
                (await runtime.client(account).run_instance("Where", timeout=WAIT_S)).output
                for _ in range(2)
            ]
        assert pids[::2] == pids[1::2]
        assert len(set(pids)) == 3
        for account, seen in (("default", "of the server"), ("a", None)):
            run = await runtime.client(account).run_instance("Secret", timeout=WAIT_S)
            assert run.output == seen


async def test_objects_go_on_with_what_has_their_name(tmp_path: Path) -> None:
    """A program that gives objects has no stored code; what a file began goes on with that."""
    path = app_of(tmp_path, OLD)
    async with start_embedded(tmp_path / "data", app_path=path) as runtime:
        await waiting(runtime, "old")
    async with embedded(tmp_path / "data") as runtime:
        assert (await answered(runtime, "old"))[:2] == ["paid 7", "shipped"]
        snapshot = await runtime.router.call(EntityRef("Account", "default"), "list_scripts")
        assert [script[0] for script in snapshot] == ["app.py"]


BROKEN = """
from pathlib import Path

import toque

FOLDER = Path({folder!r})
with (FOLDER / "imports").open("a") as log:
    log.write("x")
if (FOLDER / "broken").exists():
    raise ImportError("no module of that name")


@toque.workflow(placement="actor")
async def fragile(event, step):
    return "done"
"""


async def test_code_that_ceases_to_load_is_tried_by_one_for_all_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life.limits, "CODE_RETRY_MS", 300)
    number, file = 4, tmp_path / "fragile.py"
    file.write_text(BROKEN.format(folder=str(tmp_path)))

    def imports() -> int:
        return len((tmp_path / "imports").read_text())

    async with (
        asyncio.timeout(90),
        start_embedded(tmp_path / "data", app_path=file, account="mine") as runtime,
    ):
        await runtime.deploy("other", None)
        client = runtime.client("other")
        (tmp_path / "broken").touch()
        before = imports()
        made = [await client.create_instance("fragile") for _ in range(number)]
        while imports() < before + number + 2:  # each once, before it is known; then one for all
            await asyncio.sleep(0)
        told = (await client.statistics())["d0"]["code_broken"]
        (finding,) = judge_running({}, {"d0": {"code_broken": told}})
        assert finding.code == "code.broken"
        assert "of account other: " in finding.detail
        assert "no module of that name" in finding.detail
        reasons = {reason.kind: reason for reason in (await made[0].why()).reasons}
        assert "no module of that name" in reasons["code"].error.message
        (tmp_path / "broken").unlink()
        for instance in made:
            assert (await instance.wait()).output == "done"
        assert imports() <= before + number + 3 + number
        assert (await client.statistics())["d0"]["code_broken"] == []
