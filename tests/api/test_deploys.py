"""Deploys through HTTP on a whole embedded runtime: new code, names, deletion, two front ends."""

from __future__ import annotations

import asyncio
import base64
import io
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.client_http import connect
from toque.api.server_http import HttpServer
from toque.api.service import ControlPlane
from toque.api.wiring import Runtime, start_embedded
from toque.engines.archive import Bundle
from toque.runtime import limits
from toque.runtime.clock import SystemClock
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import BundleInvalid, WorkflowNotFound, WorkflowOwned

BASE_APP = "import toque\n\n\n@toque.workflow\nasync def base(event, step):\n    return 1\n"
V1 = b"""
import toque


class Order(toque.WorkflowEntrypoint):
    name = "order"

    async def run(self, event, step):
        await step.wait_for_event("ok", "ok", timeout="1 hour")
        return ["v1", event.workflow_name]


class Mail(toque.WorkflowEntrypoint):
    name = "mail"

    async def run(self, event, step):
        return "mailed"
"""
V2 = b"""
import toque
from helpers import VERSION


class Order(toque.WorkflowEntrypoint):
    name = "order"

    async def run(self, event, step):
        await step.do("check", lambda: True)
        return [VERSION, event.workflow_name]
"""
WAIT_S = 40


class Server:
    """A server of one runtime, called as by `curl`."""

    def __init__(self, runtime: Runtime, url: str, http: aiohttp.ClientSession) -> None:
        self.runtime = runtime
        self.url = url
        self._http = http

    async def call(
        self,
        method: str,
        path: str,
        *,
        data: bytes | io.BytesIO | None = None,
        json: Any = None,
        base: str = "",
    ) -> tuple[int, Any]:
        """The status, and the result or the first error."""
        if not base:
            base = "toque/v1" if path.startswith("scripts") else "client/v4"
        url = f"{self.url}/{base}/accounts/default/{path}"
        async with self._http.request(method, url, data=data, json=json) as answer:
            told = await answer.json()
            assert told["success"] == (answer.status == 200)
            return answer.status, told["result"] if told["success"] else told["errors"][0]

    async def deploy(self, script: str, files: dict[str, bytes], query: str = "") -> Any:
        """Deploy files; the result, which must be good."""
        raw = Bundle(files).to_zip()
        status, found = await self.call("PUT", f"scripts/{script}{query}", data=raw)
        assert status == 200, found
        return found


@asynccontextmanager
async def server_at(folder: Path, **settings: Any) -> AsyncIterator[Server]:
    path = folder / "base.py"
    path.write_text(BASE_APP)
    async with start_embedded(folder / "data", app_path=path, **settings) as runtime:
        tokens = TokenBook({"t": "default"})
        app = make_app(runtime.control_plane, tokens=tokens, version="0")
        headers = {"authorization": "Bearer t"}
        async with (
            HttpServer(app, SystemClock()) as server,
            aiohttp.ClientSession(headers=headers) as http,
        ):
            yield Server(runtime, server.url, http)


async def test_new_instances_take_the_new_code_and_old_ones_keep_theirs(tmp_path: Path) -> None:
    async with server_at(tmp_path) as server:
        first = await server.deploy("shop", {"app.py": V1})
        assert [(w["name"], w["class_name"], w["is_new"]) for w in first["workflows"]] == [
            ("order", "Order", True), ("mail", "Mail", True),
        ]  # fmt: skip
        client = server.runtime.client()
        old = await client.create_instance("order", "old")
        assert (await client.run_instance("mail", timeout=WAIT_S)).output == "mailed"

        files = {"app.py": V2, "helpers.py": b"VERSION = 'v2'"}
        second = await server.deploy("shop", files)
        assert second["left"] == ["mail"]
        assert second["code_hash"] == Bundle(files).code_hash
        new = await client.run_instance("order", timeout=WAIT_S)
        assert new.output == ["v2", "order"], "at once: this front end knows"
        await old.send_event("ok")
        assert (await old.wait(WAIT_S)).output == ["v1", "order"]
        assert (await client.run_instance("mail", timeout=WAIT_S)).output == "mailed"

        again = await server.deploy("shop", files)
        assert again["workflows"][0]["version_id"] == second["workflows"][0]["version_id"]
        status, scripts = await server.call("GET", "scripts")
        assert status == 200
        counts = {each["script"]: len(each["workflows"]) for each in scripts}
        assert counts == {"base.py": 1, "shop": 2}
        _, versions = await server.call("GET", "workflows/order/versions")
        assert [v["id"] for v in versions] == [
            second["workflows"][0]["version_id"], first["workflows"][0]["version_id"],
        ]  # fmt: skip
        assert all(v["has_dag"] for v in versions), "made from what is stored"


async def test_the_client_deploys_folders_and_files(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "app.py").write_bytes(V2)
    (folder / "helpers.py").write_bytes(b"VERSION = 'folder'")
    async with server_at(tmp_path) as server, connect(server.url, "t") as client:
        found = await client.deploy(folder)
        assert (found.script, found.left) == ("shop", [])
        assert [(w.name, w.is_new) for w in found.workflows] == [("order", True)]
        again = await client.deploy(folder)
        (listed,) = [one for one in await client.scripts.list() if one.script == "shop"]
        for deployed in (found, again):
            assert deployed.created_on == listed.created_on != ""
        assert again.modified_on == listed.modified_on >= found.modified_on > ""
        assert [(w.version_id, w.is_new) for w in again.workflows] == [
            (found.workflows[0].version_id, False)
        ]
        assert (await client.run_instance("order", timeout=WAIT_S)).output == ["folder", "order"]
        file = tmp_path / "order.py"
        file.write_bytes(V1)
        with pytest.raises(WorkflowOwned):
            await client.deploy(file)
        taken = await client.deploy(file, take_over=True)
        assert (taken.script, len(taken.workflows)) == ("order.py", 2)
        with pytest.raises(BundleInvalid, match="no such file"):
            await client.deploy(tmp_path / "nothing")


async def test_a_large_bundle_is_sent_in_pieces(tmp_path: Path) -> None:
    """aiohttp warns of bytes that are sent at once, and warnings are errors here."""
    folder = tmp_path / "big"
    folder.mkdir()
    (folder / "main.py").write_text(BASE_APP.replace("base", "big"))
    noise = base64.b85encode(random.Random(1).randbytes(3 * limits.MIB)).decode()
    (folder / "noise.py").write_text(f"NOISE = {noise!r}\n")
    async with server_at(tmp_path) as server, connect(server.url, "t") as client:
        found = await client.deploy(folder, script="big")
    assert [each.name for each in found.workflows] == ["big"]


async def test_bad_code_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with server_at(tmp_path) as server:
        before = await server.call("GET", "workflows")
        bad = Bundle({"app.py": b"print('hm')\nraise RuntimeError('no database')"}).to_zip()
        status, error = await server.call("PUT", "scripts/shop", data=bad)
        assert (status, error["code"]) == (400, 10206)
        assert "app.py, line 2: RuntimeError: no database" in error["message"]
        assert "hm" in error["message"]
        status, error = await server.call("PUT", "scripts/shop", data=b"no zip")
        assert (status, error["code"]) == (400, 10205)
        status, error = await server.call("PUT", "scripts/no%20spaces", data=bad)
        assert (status, error["code"]) == (400, 10101)
        large = io.BytesIO(bytes(limits.BUNDLE_BYTES_MAX + 1))
        status, error = await server.call("PUT", "scripts/shop", data=large)
        assert status == 413
        assert await server.call("GET", "workflows") == before


async def test_an_owned_name_needs_a_take_over(tmp_path: Path) -> None:
    async with server_at(tmp_path) as server:
        taken = b"import toque\n\n@toque.workflow\nasync def base(event, step): return 'taken'\n"
        status, error = await server.call(
            "PUT", "scripts/other", data=Bundle({"app.py": taken}).to_zip()
        )
        assert (status, error["code"]) == (400, 10204)
        assert "belongs to script 'base.py'" in error["message"]
        client = server.runtime.client()
        assert (await client.run_instance("base", timeout=WAIT_S)).output == 1
        await server.deploy("other", {"app.py": taken}, "?take_over=true")
        assert (await client.run_instance("base", timeout=WAIT_S)).output == "taken"


async def test_a_class_is_registered_under_another_name(tmp_path: Path) -> None:
    async with server_at(tmp_path) as server:
        body = {"class_name": "Order", "script_name": "shop"}
        status, error = await server.call("PUT", "workflows/vip", json=body)
        assert (status, error["code"]) == (400, 10203)
        files = {"app.py": V2, "helpers.py": b"VERSION = 2"}
        await server.deploy("shop", files)
        status, found = await server.call("PUT", "workflows/vip", json=body)
        assert (status, found["name"], found["class_name"]) == (200, "vip", "Order")
        assert (found["is_deleted"], found["terminator_running"]) == (0, 0)
        run = await server.runtime.client().run_instance("vip", timeout=WAIT_S)
        assert run.output == [2, "vip"]
        limited = {
            **body,
            "concurrency": {"limit": 5},
            "default_retention": {"success_retention": "3 days"},
            "limits": {"steps": 100},
        }
        status, _ = await server.call("PUT", "workflows/vip", json=limited)
        assert status == 200
        _, told = await server.call("GET", "workflows/vip/limits", base="toque/v1")
        assert (told["running_max"], told["steps"]) == (5, 100)
        assert told["success_retention"] == 3 * limits.DAY_MS
        schedules = {**body, "schedules": [{"cron": "* * * * *"}]}
        status, error = await server.call("PUT", "workflows/vip", json=schedules)
        assert (status, error["code"]) == (400, 10101)
        assert "schedules" in error["message"]


async def test_a_deleted_workflow_is_gone_with_its_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLEARING_LINGER_MS", 50)
    monkeypatch.setattr(limits, "CLEARING_AGAIN_MS", 10)
    async with server_at(tmp_path, data_shards=2) as server:
        plane, client = server.runtime.control_plane, server.runtime.client()
        await server.deploy("shop", {"app.py": V1})
        await client.create_instances("order", [{"id": f"o{n}"} for n in range(8)])
        uuid = (await plane.get_workflow("default", "order")).record.uuid
        assert sum((await plane._counts("default", uuid)).values()) == 8
        assert await server.call("DELETE", "workflows/order") == (200, {"status": "ok"})
        status, error = await server.call("GET", "workflows/order")
        assert (status, error["code"]) == (404, 10200)
        status, error = await server.call("DELETE", "workflows/order")
        assert status == 404
        again = await server.deploy("shop", {"app.py": V1})
        assert [(w["name"], w["is_new"]) for w in again["workflows"]] == [
            ("order", True), ("mail", False),
        ]  # fmt: skip
        assert again["workflows"][0]["id"] != uuid
        while await plane.is_clearing("default", uuid):
            await asyncio.sleep(0)
        counts = await plane._counts("default", uuid)
        assert sum(counts.values()) == 0


async def asked_until(plane: ControlPlane, time: float) -> None:
    """Ask for a workflow again and again until that time of the loop."""
    while asyncio.get_running_loop().time() < time:
        await plane._workflow("default", "order")
        await asyncio.sleep(0)


async def test_another_front_end_learns_of_a_deploy_within_a_second(tmp_path: Path) -> None:
    async with server_at(tmp_path) as server:
        mine = server.runtime.control_plane
        other = ControlPlane(
            server.runtime.router, server.runtime.placement, SystemClock(), SystemEntropy()
        )
        loop = asyncio.get_running_loop()
        try:
            await server.deploy("shop", {"app.py": V1})
            first = (await other.get_workflow("default", "order")).record
            files = {"app.py": V2, "helpers.py": b"VERSION = 2"}
            await server.deploy("shop", files)
            changed = loop.time()
            new = (await mine.get_workflow("default", "order")).record
            assert new.version_id != first.version_id
            seen = first
            while seen.version_id == first.version_id:  # asks all the time, as a busy one would
                seen = await other._workflow("default", "order")
                assert loop.time() - changed < 1.5, "a second, and a slow machine"
                await asyncio.sleep(0)
            await mine.deploys.delete("default", "order")
            with pytest.raises(WorkflowNotFound):
                await asked_until(other, loop.time() + 1.5)
        finally:
            await other.close()
