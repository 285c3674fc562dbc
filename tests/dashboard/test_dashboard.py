"""The dashboard in a real browser, over a whole server: `make dashboard`.

Each test opens a server and a browser of its own, looks and clicks as a person would, and at the
end insists that nothing was logged as an error and that no policy was broken.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.dashboard.browser import Page, browser_path, browsing
from tests.dashboard.flows_app import HOSTILE
from toque.api.app_http import ControlPlaneApp, make_app
from toque.api.auth import READ, Principal, TokenBook
from toque.api.server_http import HttpServer
from toque.api.wiring import Runtime, start_embedded
from toque.runtime.clock import SystemClock

APP = Path(__file__).with_name("flows_app.py")
TOKENS = {
    "tenant": "default",
    "reader": Principal("default", READ, "r", "for reading"),
    "other": "other",
    "operator": "*",
}

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(browser_path() is None, reason="no browser: make dashboard"),
]


class Prefixed:
    """What a proxy does that serves everything below a prefix."""

    def __init__(self, app: ControlPlaneApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path: str = scope["path"]
        assert path.startswith(self._prefix), path
        raw = scope["raw_path"][len(self._prefix) :]
        inner = {**scope, "path": path[len(self._prefix) :], "raw_path": raw}
        await self._app(inner, receive, send)

    def drain(self) -> None:
        """End long waits."""
        self._app.drain()


class World(NamedTuple):
    """A server and a browser that looks at it."""

    runtime: Runtime
    app: ControlPlaneApp
    page: Page
    url: str

    async def open(self, where: str = "", token: str = "tenant") -> None:
        """Look at a part of the dashboard, signed in."""
        await self.page.go(f"{self.url}/dashboard/")
        await self.page.eval(f"sessionStorage.setItem('toque.token', {json.dumps(token)})")
        await self.page.go(f"{self.url}/dashboard/#/{where}")

    async def until(self, workflow: str, instance: str, status: str) -> None:
        """Wait until an instance has that status."""
        handle = self.runtime.client().instance(workflow, instance)
        while (await handle.status()).status != status:
            pass


@asynccontextmanager
async def world(folder: Path, prefix: str = "", **settings: Any) -> AsyncIterator[World]:
    async with start_embedded(folder / "data", app_path=APP, **settings) as runtime:
        await runtime.control_plane.accounts.create_account("other", None)
        app = make_app(runtime.control_plane, tokens=TokenBook(TOKENS), version="test")
        served: Any = Prefixed(app, prefix) if prefix else app
        async with (
            HttpServer(served, SystemClock()) as server,
            browsing(folder / "profile") as page,
        ):
            yield World(runtime, app, page, server.url + prefix)
            assert page.faults == []
            elsewhere = [
                url
                for url in page.requests
                if not url.startswith((server.url + prefix, "about:", "data:"))
            ]
            assert elsewhere == []


async def test_a_token_is_asked_for_tried_and_kept_in_this_tab_only(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        await page.go(f"{all_of_it.url}/dashboard")
        await page.sees("Sign in to toque")
        await page.fill("#token", "wrong")
        await page.press("Enter")
        await page.sees("the token is not known")
        await page.fill("#token", "tenant")
        await page.press("Enter")
        await page.sees("Workflows of default")
        assert await page.eval("sessionStorage.getItem('toque.token')") == "tenant"
        assert await page.eval("JSON.stringify(localStorage) + document.cookie") == "{}"
        assert "tenant" not in await page.eval("location.href")
        assert "Accounts" not in await page.text("#top")
        for where, told in (("server", "operator"), ("a/other", "does not reach this account")):
            await page.eval(f"location.hash = '#/{where}'")
            await page.sees(told)
        await page.click("Sign out")
        await page.sees("Sign in to toque")
        assert await page.eval("sessionStorage.length") == 0
        await all_of_it.open("accounts", "operator")
        await page.until("document.querySelectorAll('tbody tr').length === 2")
        await page.click("Server")
        await page.sees("Nothing is wrong")
        await page.until("document.querySelectorAll('tbody tr').length === 2")


async def test_a_token_that_is_revoked_leads_back_to_the_door(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page, accounts = all_of_it.page, all_of_it.runtime.control_plane.accounts
        await all_of_it.runtime.client().create_instance("Nap", "n")
        made = await accounts.create_token("default", "short", "write")
        await all_of_it.open("a/default/w/Nap/i/n", made.text)
        await page.sees("It sleeps: nap-1.")
        await page.sees("sleep_started")
        assert "Sign out" in await page.text()
        await accounts.revoke_token("default", made.record.id)
        await page.sees("Sign in to toque")
        await page.sees("the token is not known")
        assert await page.eval("sessionStorage.length") == 0
        assert "nap-1" not in await page.text()


async def test_who_may_only_read_is_offered_no_change(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        await all_of_it.runtime.client().create_instance("Nap", "n")
        await all_of_it.open("a/default/w/Nap", "reader")
        await page.sees("1 in all")
        assert "Change all" not in await page.text()
        await page.click("n", "tbody")
        await page.sees("may only read")
        assert await page.eval("document.querySelector('button.danger')") is None
        await all_of_it.open("a/default/limits", "reader")
        await page.sees("needs the scope admin")
        assert await page.eval("[...document.querySelectorAll('input')].every((i) => i.disabled)")


async def test_what_is_hostile_is_text(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        client = all_of_it.runtime.client()
        await client.create_instance("Hostile", "h", HOSTILE)
        await all_of_it.until("Hostile", "h", "errored")
        await all_of_it.open("a/default/w/Hostile/i/h")
        await page.sees("Why it ended")
        await page.sees("workflow_errored")
        await page.eval(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        shown = await page.text()
        assert shown.count("<img src=x onerror=") >= 5
        await page.click("Restart from here")
        await page.sees("A new run begins")
        await page.press("Escape")
        word = await page.eval(f"encodeURIComponent({json.dumps(HOSTILE)})")
        for name, told in ((word, "is not valid: use 1 to 64 letters"), ("%", "no such page")):
            await page.eval(f"location.hash = '#/a/default/w/' + {json.dumps(name)}")
            await page.sees(told)
        assert await page.eval("window.hit") is None
        assert await page.eval("document.querySelectorAll('main img, main script').length") == 0
        assert page.faults == []
        slip = "document.createElement('p').innerHTML = '<b>x</b>'"
        done = f"(() => {{ try {{ {slip}; return 'taken'; }} catch (e) {{ return e.name; }} }})()"
        assert await page.eval(done) == "TypeError"  # the policy would stop a mistake
        page.faults.clear()


async def test_an_instance_is_followed_to_its_end(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        await all_of_it.runtime.client().create_instance("Orders", "2026/o-1", {"n": 1})
        await all_of_it.open("a/default/w/Orders")
        await page.click("2026/o-1", "tbody")
        await page.sees("It waits for an event of type approval")
        await page.sees("wait_started")
        await page.click("step charge", ".timeline")
        await page.sees("ValueError: the bank is busy")
        await page.sees("flows_app.py:25 in ")
        assert "12345678901234567890" in await page.text(".step[open]")  # exact, as it is on disk
        await page.click("Send event")
        await page.until("document.activeElement.name === 'type'")
        await page.send("Input.insertText", text="approval")
        await page.press("Tab")
        await page.send("Input.insertText", text='{"by": "ada", "nope"')
        await page.click("Send", "dialog .buttons:last-child")
        await page.until("document.querySelector('dialog .problem')")
        assert "payload.invalid" in await page.text("dialog .problem")
        await page.fill("dialog textarea", '{"by": "ada"}')
        marked = "document.querySelector('.step[open]').mark"
        await page.eval(f"{marked} = 1")
        await page.click("Send", "dialog .buttons:last-child")
        await page.until("document.querySelector('h1 .status.complete')")
        await page.sees('"by": "ada"')
        await page.sees("workflow_completed")
        await page.sees("ship-1")
        assert await page.eval(marked) == 1  # what was open stays what it was
        assert await page.eval("document.querySelector('dialog').open") is False


async def test_operations_ask_first_and_tell_what_was_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        client = all_of_it.runtime.client()
        await client.create_instance("Orders", "o")
        await all_of_it.until("Orders", "o", "waiting")
        await all_of_it.open("a/default/w/Orders/i/o")
        for label, status in (("Pause", "paused"), ("Resume", "waiting")):
            await page.click(label, "main")
            await page.sees(f"{label} this instance?")
            assert "Instance o of Orders." in await page.text("dialog")
            await page.press("Enter")  # what has the focus changes nothing
            await page.until("!document.querySelector('dialog').open")
            assert status not in await page.text("h1")
            await page.click(label, "main")
            await page.click(label, "dialog")
            await page.until(f"document.querySelector('h1 .status').innerText.includes('{status}')")
        before = await page.eval("[...document.querySelectorAll('.facts code')].at(-1).innerText")
        await page.click("step charge", ".timeline")
        await page.click("Restart from here", ".step[open]")
        await page.click("Restart from here", "dialog")
        await page.until(
            f"[...document.querySelectorAll('.facts code')].at(-1).innerText !== '{before}'"
        )
        await all_of_it.until("Orders", "o", "waiting")
        await page.click("Terminate", "main")
        await page.sees("Undo first")
        await client.instance("Orders", "o").terminate()  # somebody is faster
        await page.eval("document.querySelector('dialog input').click()")
        await page.click("Terminate", "dialog")
        await page.sees("instance.invalid_transition")
        await page.press("Escape")
        await page.until("document.querySelector('h1 .status.terminated')")
        await page.click("Restart", "main")
        await page.click("Restart", "dialog")
        await page.until("document.querySelector('h1 .status.waiting')")
        await page.click("Terminate", "main")
        await page.eval("document.querySelector('dialog input').click()")
        await page.click("Terminate", "dialog")
        await page.until("document.querySelector('h1 .status.terminated')")
        await page.sees("rollback reserve-1")
        await page.click("Delete", "main")
        await page.sees("its id is free at once")
        await page.click("Delete", "dialog")
        await page.sees("No instance is here.")


async def test_a_list_is_filtered_paged_kept_fresh_and_changed(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        client = all_of_it.runtime.client()
        made = {f"a/{number}" for number in range(70)} | {f"b/{number}" for number in range(60)}
        for name in sorted(made):
            await client.create_instance("Nap", name)
        await all_of_it.open("a/default/w/Nap")
        await page.sees("130 in all")
        rows = "[...document.querySelectorAll('tbody th')].map((one) => one.innerText)"
        seen: list[str] = []
        for number in (1, 2, 3):
            await page.sees(f"Page {number}")
            seen += await page.eval(rows)
            if number < 3:
                await page.click("On", ".pager")
        assert sorted(seen) == sorted(made)
        assert await page.eval("document.querySelectorAll('.pager button')[1].disabled") is True
        await page.click("Back", ".pager")
        await page.sees("Page 2")
        await page.fill("#prefix", "b/")
        await page.sees("60 match")
        assert {name[0] for name in await page.eval(rows)} == {"b"}
        await client.instance("Nap", "b/0").terminate()
        await page.until("document.querySelector('tbody .status.terminated')")
        await page.click("\u25cc waiting", ".filters")
        await page.sees("59 match")
        assert "status=waiting&prefix=b%2F" in await page.eval("location.hash")
        await page.click("Change all that match")
        await page.sees("59 instances of Nap")
        await page.fill("dialog input", "Orders")
        await page.click("Change them", "dialog")
        await page.sees("nothing was changed")
        await page.fill("dialog input", "Nap")
        await page.click("Change them", "dialog")
        await page.sees("59 changed, 0 refused.")
        await page.click("Close", "dialog")
        await page.sees("0 match")
        info = await all_of_it.runtime.control_plane.get_workflow("default", "Nap")
        assert (info.counts["waiting"], info.counts["terminated"]) == (70, 60)


async def test_limits_are_changed_and_a_queue_is_explained(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        await all_of_it.open("a/default/limits")
        await page.fill("#field-running_max", "many")
        await page.click("Change", "main form")
        await page.click("Change", "dialog")
        await page.until("document.querySelector('dialog .problem')")
        await page.press("Escape")
        await page.fill("#field-running_max", "0")
        await page.click("Change", "main form")
        await page.sees("from now on 0.")
        await page.click("Change", "dialog")
        await page.sees("It takes effect within two seconds.")
        control = all_of_it.runtime.control_plane
        assert (await control.limits.of_account("default")).running_max == 0
        await all_of_it.runtime.client().create_instance("Quick", "q")
        await all_of_it.open("a/default/w/Quick/i/q")
        await page.sees("It waits for a slot.")
        await page.sees("It is in the queue.")
        await page.sees("The account's slots are what it waits for.")
        await page.eval("location.hash = '#/a/default'")
        await page.sees("the oldest for")
        await page.until("document.querySelector('.tile .figure').innerText === '0'")


async def test_an_account_on_v1_and_its_move_are_shown(tmp_path: Path) -> None:
    async with world(tmp_path, control_plane="v1") as all_of_it:
        page = all_of_it.page
        await all_of_it.runtime.client().create_instance("Nap", "n")
        await all_of_it.until("Nap", "n", "waiting")
        await all_of_it.open("a/default", "operator")
        await page.sees("V1")
        await page.sees("(v1): 0 queued")
        await page.click("1", "tbody")
        await page.click("n", "tbody")
        await page.sees("It sleeps: nap-1.")
        await page.click("Migration")
        await page.sees("No move was begun; the account is on V1.")
        await all_of_it.runtime.control_plane.migrations.start("default", in_ms=60_000)
        await page.sees("planned")
        await page.click("Pause", "main")
        await page.click("Pause", "dialog")
        await page.sees("paused")
        await page.click("Abort", "main")
        await page.sees("the account stays on V1")
        await page.click("Abort", "dialog")
        await page.sees("aborted")
        await page.until("document.querySelector('main button') === null")


async def test_a_long_history_and_long_payloads_stay_bounded(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        client = all_of_it.runtime.client()
        await client.run_instance("Many", "m", 5_000)
        await all_of_it.open("a/default/w/Many/i/m")
        await page.sees("of 20,0")
        await page.sees("The newest 100 of 5,000 are shown.")
        events = "document.querySelectorAll('.events li').length"
        assert await page.eval(events) <= 100
        await page.click("Older")
        await page.sees("Events 19,80")
        assert await page.eval(events) == 100
        await page.click("Oldest")
        await page.sees("workflow_started")
        await page.sees("Events 1 to 100")
        assert await page.eval("document.querySelectorAll('.step').length") == 100
        assert await page.eval("document.querySelectorAll('*').length") < 6_000
        await client.run_instance("Large", "l")
        await all_of_it.open("a/default/w/Large/i/l")
        await page.sees("It has 293.0 KiB.")
        await page.click("Show it", ".pair")
        await page.sees("100,002 more characters are not shown here.")
        longest = (
            "Math.max(...[...document.querySelectorAll('pre')].map((one) => one.innerText.length))"
        )
        assert await page.eval(longest) == 200_000


async def test_a_server_that_is_away_is_told_and_looked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        port = 0
        async with HttpServer(all_of_it.app, SystemClock()) as server:
            port = server.port
            await all_of_it._replace(url=server.url).open("a/default")
            await page.sees("Created a second")
        await page.sees("The server does not answer. Trying again")
        assert "Orders" in await page.text("main")  # what was seen stays
        await all_of_it.runtime.client().create_instance("Nap", "n")
        async with HttpServer(all_of_it.app, SystemClock(), port=port):
            await page.until("document.getElementById('away').hidden")
            await page.until(
                "[...document.querySelectorAll('.figure')].some((one) => one.innerText === '1')"
            )
        page.requests = [url for url in page.requests if f":{port}/" not in url]


async def test_it_works_behind_a_prefix(tmp_path: Path) -> None:
    async with world(tmp_path, "/ops/toque") as all_of_it:
        page = all_of_it.page
        await page.go(f"{all_of_it.url}/dashboard")
        await page.sees("Sign in to toque")
        assert (await page.eval("location.pathname")) == "/ops/toque/dashboard/"
        await page.fill("#token", "tenant")
        await page.press("Enter")
        await page.sees("Workflows of default")
        await page.sees("Orders")


async def test_nobody_asks_while_nobody_looks(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        await all_of_it.open("a/default")
        await page.sees("Created a second")
        await page.eval(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true })"
        )
        quiet = "new Promise((done) => setTimeout(done, 2_500))"  # more than a period
        await page.eval(quiet)
        asked = len(page.requests)
        await page.eval(quiet)
        assert len(page.requests) == asked
        await page.eval("delete document.hidden")
        await page.eval("document.dispatchEvent(new Event('visibilitychange'))")
        while len(page.requests) == asked:
            await page.eval("1")


async def test_it_is_usable_by_keyboard_and_screen_reader_and_on_a_phone(tmp_path: Path) -> None:
    async with world(tmp_path) as all_of_it:
        page = all_of_it.page
        client = all_of_it.runtime.client()
        await client.create_instance("Orders", "folder/7/" + "very-long-name-" * 10)
        await all_of_it.until("Orders", "folder/7/" + "very-long-name-" * 10, "waiting")
        where = {
            "a/default": "Created a second",
            "a/default/w/Orders": "1 in all",
            "a/default/limits": "Creates a second",
            "accounts": "Control plane",
            "server": "Nothing is wrong",
            "a/default/migration": "No move was begun",
            "a/default/w/Orders/i/" + "folder%2F7%2F" + "very-long-name-" * 10: "wait_started",
        }
        for place, told in where.items():
            await all_of_it.open(place, "operator")
            await page.sees(told)
            for width in (1280, 390):
                await page.size(width, 844)
                wide = await page.eval("document.documentElement.scrollWidth")
                assert wide <= width, (place, width, wide)
            tree = await page.send("Accessibility.getFullAXTree")
            for node in tree["nodes"]:
                role = node.get("role", {}).get("value")
                if not node["ignored"] and role in (
                    "button",
                    "link",
                    "textbox",
                    "searchbox",
                    "checkbox",
                ):
                    assert node["name"]["value"], (place, node)
            roles = {node.get("role", {}).get("value") for node in tree["nodes"]}
            assert {"main", "banner", "heading"} <= roles
        await page.size(1280, 844)
        await all_of_it.open("a/default/w/Orders")
        await page.sees("1 in all")
        found = "document.activeElement.innerText ?? ''"
        for _ in range(40):
            await page.press("Tab")
            if (await page.eval(found)).startswith("folder/7/"):
                break
        await page.press("Enter")
        await page.sees("Why it waits")
