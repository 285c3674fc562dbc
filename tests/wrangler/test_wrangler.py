"""Cloudflare's command line drives a server of ours: every command on workflows.

`make wrangler` installs it and runs this. What is compared is what it prints; it fails by itself
on answers that it can't read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cloudflare import Cloudflare

from tests.conformance.served import Served, live_server

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("WRANGLER_FOLDER", ROOT / ".venv" / "wrangler"))
SCRIPT = FOLDER / "node_modules" / "wrangler" / "bin" / "wrangler.js"
NODE = shutil.which("node")
SECONDS = 90

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(NODE is None or not SCRIPT.exists(), reason="no wrangler: make wrangler"),
]


class Wrangler:
    """Runs `wrangler workflows ...` against a server."""

    def __init__(self, served: Served, home: Path) -> None:
        self.served = served
        self._home = home
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CI": "1",
            "NO_COLOR": "1",
            "TZ": "UTC",
            "WRANGLER_SEND_METRICS": "false",
            "WRANGLER_HIDE_BANNER": "true",
            "WRANGLER_LOG_PATH": str(home / "log"),
            "CLOUDFLARE_API_BASE_URL": served.base_url,
            "CLOUDFLARE_API_TOKEN": served.token,
            "CLOUDFLARE_ACCOUNT_ID": served.account,
        }

    def fails(self, *words: str, **environment: str) -> str:
        """What it prints when it ends with an error."""
        code, said = self._run(words, environment)
        assert code != 0, said
        return said

    def __call__(self, *words: str, **environment: str) -> str:
        """What it prints."""
        code, said = self._run(words, environment)
        assert code == 0, said
        return said

    def _run(self, words: tuple[str, ...], environment: dict[str, str]) -> tuple[int, str]:
        assert NODE is not None
        done = subprocess.run(
            [NODE, str(SCRIPT), "workflows", *words],
            cwd=self._home,
            env={**self._environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["v2", "v1"])
def wrangler(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Wrangler]:
    """One server for the module and each control plane."""
    with live_server(tmp_path_factory.mktemp("served"), request.param) as served:
        yield Wrangler(served, tmp_path_factory.mktemp("home"))


def wait_for(wrangler: Wrangler, workflow: str, instance: str, status: str) -> str:
    """Describe an instance when it has that status. (Starting wrangler takes seconds.)"""
    served = wrangler.served
    with Cloudflare(api_token=served.token, base_url=served.base_url) as sdk:
        options = {"account_id": served.account, "status": status}
        while instance not in {
            line.id for line in sdk.workflows.instances.list(workflow, **options)
        }:
            pass
    return wrangler("instances", "describe", workflow, instance)


def test_workflows_are_listed_and_described(wrangler: Wrangler) -> None:
    said = wrangler("list")
    for name in ("Ask", "Fail", "Nap", "Orders", "Retry", "Stream"):
        assert name in said
    assert "shop_app.py" in said
    said = wrangler("describe", "Orders")
    assert re.search(r"Name:\s+Orders", said)
    assert "10200" in wrangler.fails("describe", "Nowhere")


def test_without_an_account_it_finds_the_tokens_own(wrangler: Wrangler) -> None:
    assert "Orders" in wrangler("list", CLOUDFLARE_ACCOUNT_ID="")


def test_an_instance_is_triggered_and_described(wrangler: Wrangler) -> None:
    assert "one" in wrangler("trigger", "Orders", '{"n": 1}', "--id", "one")
    said = wait_for(wrangler, "Orders", "one", "complete")
    assert re.search(r"Last Successful Step:\s+charge-1", said)
    assert "charged {'n': 1}" in said
    assert "API" in said
    assert "one" in wrangler("instances", "describe", "Orders", "latest")
    assert "10405" in wrangler.fails("trigger", "Orders", "--id", "one")
    assert "10400" in wrangler.fails("instances", "describe", "Orders", "nobody")


def test_steps_of_every_type_are_described(wrangler: Wrangler) -> None:
    for workflow, shown in (("Nap", "Sleeping"), ("Ask", "Waiting for event")):
        wrangler("trigger", workflow, "--id", "open")
        assert shown in wait_for(wrangler, workflow, "open", "waiting")
    wrangler("trigger", "Fail", "--id", "failed")
    said = wait_for(wrangler, "Fail", "failed", "errored")
    assert "Errored" in said
    assert "OutOfStock: no stock" in said
    for name, params, left in (("fixed", "null", "59|60 minutes|1 hour"), ("told", "1", "2 hours")):
        wrangler("trigger", "Retry", params, "--id", name)
        said = wait_for(wrangler, "Retry", name, "waiting")
        assert re.search(rf"Retries At: .*\(in (in )?({left})", said), said
        assert "ValueError: not yet" in said


def test_instances_are_listed_by_page_and_status(wrangler: Wrangler) -> None:
    for number in range(3):
        wrangler("trigger", "Stream", "--id", f"s{number}")
    wait_for(wrangler, "Stream", "s2", "complete")
    first = wrangler("instances", "list", "Stream", "--per-page", "2")
    second = wrangler("instances", "list", "Stream", "--per-page", "2", "--page", "2")
    seen = [name for name in ("s0", "s1", "s2") if (name in first) != (name in second)]
    assert seen == ["s0", "s1", "s2"]
    third = wrangler("instances", "list", "Stream", "--per-page", "2", "--page", "3")
    assert "No instances found on page 3" in third
    assert "s2" in wrangler("instances", "list", "Stream", "--status", "complete")
    none = wrangler("instances", "list", "Stream", "--status", "errored")
    assert "There are no instances" in none


def test_an_event_is_sent(wrangler: Wrangler) -> None:
    wrangler("trigger", "Ask", "--id", "event")
    said = wrangler(
        "instances", "send-event", "Ask", "event", "--type", "answer", "--payload", '{"yes": 1}'
    )
    assert '"answer"' in said
    assert '{"yes":1}' in wait_for(wrangler, "Ask", "event", "complete")


def test_statuses_are_changed(wrangler: Wrangler) -> None:
    wrangler("trigger", "Nap", "--id", "moved")
    wait_for(wrangler, "Nap", "moved", "waiting")
    wrangler("instances", "pause", "Nap", "moved")
    wait_for(wrangler, "Nap", "moved", "paused")
    wrangler("instances", "resume", "Nap", "moved")
    wait_for(wrangler, "Nap", "moved", "waiting")
    wrangler("instances", "restart", "Nap", "moved")
    wait_for(wrangler, "Nap", "moved", "waiting")
    wrangler("instances", "terminate", "Nap", "moved")
    wait_for(wrangler, "Nap", "moved", "terminated")
    assert "10407" in wrangler.fails("instances", "terminate", "Nap", "moved")
    said = wrangler("instances", "describe", "Nap", "moved")
    assert "Terminated" in said
    assert re.search(r"Termination\s+Trigger:\s+api", said)


def test_a_workflow_is_deleted_with_its_instances(wrangler: Wrangler) -> None:
    served = wrangler.served
    with Cloudflare(api_token=served.token, base_url=served.base_url) as sdk:
        named = {"class_name": "Nap", "script_name": "shop_app.py"}
        sdk.workflows.update("gone", account_id=served.account, **named)
    wrangler("trigger", "gone", "--id", "left")
    assert "gone" in wrangler("list")
    assert "gone" in wrangler("delete", "gone")
    assert "gone" not in wrangler("list")
    assert "10200" in wrangler.fails("instances", "describe", "gone", "left")
    assert "10200" in wrangler.fails("delete", "gone")


def test_all_instances_are_terminated(wrangler: Wrangler) -> None:
    wrangler("trigger", "Nap", "--id", "many")
    wait_for(wrangler, "Nap", "many", "waiting")
    said = wrangler("instances", "terminate-all", "Nap", "--status", "waiting")
    assert "has been started" in said
    wait_for(wrangler, "Nap", "many", "terminated")
