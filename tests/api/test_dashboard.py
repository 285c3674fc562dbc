"""The dashboard without a browser: its files, their headers, and rules over its sources.

What it does in a browser is tried by `make dashboard` (tests/dashboard/).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import toque
from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.dashboard_http import dashboard_url
from toque.api.openapi import OPERATIONS
from toque.api.server_http import HttpServer
from toque.api.wiring import embedded
from toque.dashboard.assets import PAGE, load_assets
from toque.runtime.clock import SystemClock

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboard"
SCRIPTS = sorted(FOLDER.glob("*.js"))

# What would turn text into HTML or into code, load something from elsewhere, or keep the token.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|DOMParser|createContextual"
    r"|\beval\(|new Function|createElementNS|\.srcdoc|\bimport\(|https?://|\.cookie\b"
    r"|localStorage\.setItem\((?!THEME)"
)
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:|//[\w.]+/")


@asynccontextmanager
async def serving(
    folder: Path, **settings: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async with embedded(folder / "data") as runtime:
        tokens = TokenBook({"t": "default"})
        app = make_app(runtime.control_plane, tokens=tokens, version="test", **settings)
        async with (
            HttpServer(app, SystemClock()) as server,
            aiohttp.ClientSession() as session,
        ):
            yield session, server.url


async def test_every_file_is_served_with_headers_that_keep_others_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as (session, url):
        for name in ("", *load_assets()):
            async with session.get(dashboard_url(url) + name) as answer:
                assert answer.status == 200, name
                assert await answer.read() == (FOLDER / (name or PAGE)).read_bytes()
                told = answer.headers
                policy = dict(
                    part.split(" ", 1) for part in told["content-security-policy"].split("; ")
                )
                assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
                assert (
                    policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
                )
                assert policy["require-trusted-types-for"] == "'script'"
                assert "unsafe" not in told["content-security-policy"]
                assert told["x-content-type-options"] == "nosniff"
                assert told["x-frame-options"] == "DENY"
                assert told["referrer-policy"] == "no-referrer"
                assert told["cache-control"] == "no-cache"
                tag = told["etag"]
            async with session.get(
                dashboard_url(url) + name, headers={"if-none-match": tag}
            ) as again:
                assert (again.status, await again.read(), again.headers["etag"]) == (304, b"", tag)
            async with session.head(dashboard_url(url) + name) as head:
                assert (head.status, await head.read()) == (200, b"")
        async with session.get(dashboard_url(url) + "app.js") as answer:
            assert answer.content_type == "text/javascript"


async def test_it_is_found_behind_a_prefix_and_nothing_else_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as (session, url):
        async with session.get(f"{url}/dashboard", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["location"]) == (307, "dashboard/")
        for path in ("nothing.js", "assets.py", "__init__.py", "../README.md", "..%2fREADME.md"):
            asked = f"{url}/dashboard/{path}"
            async with session.get(aiohttp.client.URL(asked, encoded=True)) as answer:
                assert answer.status in (401, 404), path
                assert (await answer.json())["success"] is False
        async with session.post(f"{url}/dashboard/") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_it_may_be_switched_off(tmp_path: Path) -> None:
    async with serving(tmp_path, dashboard=False) as (session, url):
        for headers, status in (({}, 401), ({"authorization": "Bearer t"}, 404)):
            for path in ("/dashboard", "/dashboard/", "/dashboard/app.js"):
                async with session.get(url + path, headers=headers) as answer:
                    assert answer.status == status, path


# --- rules over the sources ---


def test_nothing_is_put_in_as_html_nor_loaded_from_elsewhere() -> None:
    for path in SCRIPTS:
        assert not FORBIDDEN.search(path.read_text()), (
            path.name,
            FORBIDDEN.search(path.read_text()),
        )
    html = (FOLDER / PAGE).read_text()
    assert not INLINE.search(html), INLINE.search(html)
    for path in FOLDER.glob("*.css"):
        assert not re.search(r"@import|https?:|//\w", path.read_text()), path.name


@pytest.mark.parametrize(
    "bad",
    [
        "node.innerHTML = text",
        "eval('1')",
        "localStorage.setItem(TOKEN, text)",
        'fetch("https://elsewhere.example/")',
    ],
)
def test_a_breach_is_found(bad: str) -> None:
    assert FORBIDDEN.search(bad)
    assert INLINE.search('<p onclick="x()">')
    assert INLINE.search("<script>x()</script>")


def test_whatever_is_named_is_there() -> None:
    named = set(re.findall(r'(?:src|href)="([^"#]+)"', (FOLDER / PAGE).read_text()))
    for path in SCRIPTS:
        named |= set(re.findall(r'from "\./([^"]+)"', path.read_text()))
    for path in FOLDER.glob("*.css"):
        named |= set(re.findall(r'url\("([^"]+)"\)', path.read_text()))
    assert named == set(load_assets()) - {PAGE}


def test_every_call_of_the_page_is_described() -> None:
    described = {op.name: f"{op.method.upper()} {op.path}" for op in OPERATIONS}
    stated = dict(
        re.findall(r'^  (\w+): "([^"]+)",$', (FOLDER / "operations.js").read_text(), re.M)
    )
    assert stated.items() <= described.items()
    texts = [path.read_text() for path in SCRIPTS if path.name != "operations.js"]
    used = {name for name in described if any(re.search(rf'"{name}"', text) for text in texts)}
    assert used == set(stated)
    called = {name for text in texts for name in re.findall(r'\b(?:call|result)\("(\w+)"', text)}
    assert called <= set(stated)


def test_the_files_are_in_the_package() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "toque.dashboard" in tool["packages"]
    patterns = tool["package-data"]["*"]
    for name in (*load_assets(), "py.typed"):
        assert any(fnmatch(name, pattern) for pattern in patterns), name
    kept = {path.name for path in FOLDER.iterdir() if path.suffix not in (".py", "")}
    assert kept == {*load_assets(), "py.typed"}


# --- what the API gives for it ---


class Large(toque.WorkflowEntrypoint):
    """Long payloads, and several steps."""

    async def run(self, event: Any, step: Any) -> str:
        for number in range(5):
            await step.do("short", lambda number=number: number)
        return str(await step.do("long", lambda: "x" * 1000))


async def test_an_instance_is_shown_in_part(tmp_path: Path) -> None:
    async with embedded(tmp_path / "data", [Large]) as runtime:
        await runtime.client().run_instance("Large", "i", params="y" * 1000)
        app = make_app(runtime.control_plane, tokens=TokenBook({"t": "default"}), version="test")
        headers = {"Authorization": "Bearer t"}
        async with (
            HttpServer(app, SystemClock()) as server,
            aiohttp.ClientSession(headers=headers) as session,
        ):
            one = f"{server.url}/client/v4/accounts/default/workflows/Large/instances/i"

            async def ask(query: str) -> Any:
                async with session.get(one + query) as answer:
                    told = await answer.json()
                    return told["result"] if answer.status == 200 else told["errors"][0]["message"]

            whole = await ask("")
            assert [len(whole["params"]), len(whole["output"]), len(whole["steps"])] == [
                1000,
                1000,
                6,
            ]
            assert not [name for name in str(whole) if name.endswith("_bytes")]
            part = await ask("?order=desc&steps=2&payload_bytes=100")
            assert [step["name"] for step in part["steps"]] == ["long-1", "short-5"]
            assert [step["output"] for step in part["steps"]] == [None, 4]
            assert [step.get("output_bytes") for step in part["steps"]] == [1002, None]
            assert (part["params"], part["params_bytes"]) == (None, 1002)
            assert (part["output"], part["output_bytes"], part["step_count"]) == (None, 1002, 6)
            assert await ask("?payload_bytes=1002") == whole
            assert "payload_bytes" in await ask("?payload_bytes=-1")
            assert "steps" in await ask("?steps=many")
