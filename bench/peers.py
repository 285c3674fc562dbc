"""Other systems, run by a kit that lies outside of the project: $PEERS names its folder.

The kit's runners print one JSON line for a workload (w1: create to complete; w2: ten steps; w3:
waiting for an event); what they need is installed under $PEERS_ROOT. Each runs in the mode that
was the best of those tried. Whatever a runner has started is ended by its ids.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from . import processes

STOP_S = 20


class Peer(NamedTuple):
    """A system of the kit: its environment, runner, and arguments by workload.

    A workload without arguments is not run. Without a runner it is this folder's `restate_call`.
    """

    venv: str
    script: str
    w1: str
    w2: str
    w3: str
    environment: dict[str, str]

    @property
    def runner(self) -> Path:
        """The file to run."""
        if not self.script:
            return Path(__file__).with_name("restate_call.py")
        return (kit() or Path()) / self.script


PEERS = {
    "restate": Peer(
        "venv-restate",
        "run_restate.py",
        "--w1-n 3000 --conc 32",
        "--w2-n 300 --w2-solo 50 --conc 32",
        "--w3-n 2000 --conc 32 --inactivity 10s --settle 40",
        {},
    ),
    "restate-call": Peer("venv-restate", "", "--n 3000 --conc 32", "", "", {}),
    "dbos-sqlite": Peer(
        "venv-dbos",
        "run_dbos.py",
        "--db sqlite --mode sync --conc 4 --w1-n 400",
        "--db sqlite --mode sync --conc 4 --w2-n 50 --w2-solo 20",
        "--db sqlite --conc 4 --w3-n 500",
        {},
    ),
    "dbos-pg": Peer(
        "venv-dbos",
        "run_dbos.py",
        "--db pg --mode sync --conc 16 --w1-n 600",
        "--db pg --mode sync --conc 16 --w2-n 60 --w2-solo 20",
        "--db pg --conc 16 --w3-n 500",
        {},
    ),
    "cloudflare": Peer(
        "venv-client",
        "run_cloudflare.py",
        "--w1-n 500 --conc 16",
        "--w2-n 100 --w2-solo 20 --conc 16",
        "--w3-n 500 --w3-recover-n 500 --conc 16",
        {"CF_NPM": "npm-cf-old", "CF_NODE": "node", "CF_PEER": "cloudflare-local-4.86"},
    ),
}


def kit() -> Path | None:
    """The kit's folder, if there is one."""
    named = os.environ.get("PEERS")
    return Path(named) if named else None


def root() -> Path:
    """Where the kit has installed the peers."""
    default = Path(tempfile.gettempdir()) / "toque-peers"
    return Path(os.environ.get("PEERS_ROOT") or default)


def installed() -> list[str]:
    """The peers that can run here."""
    if kit() is None:
        return []
    return [
        name
        for name, peer in PEERS.items()
        if peer.runner.exists() and (root() / peer.venv / "bin" / "python").exists()
    ]


def chosen(names: str) -> list[str]:
    """The peers that an option names: `all` that can run here, `none`, or a list."""
    if names in ("", "none"):
        return []
    if names == "all":
        return installed()
    asked = names.split(",")
    missing = [name for name in asked if name not in installed()]
    if missing:
        raise SystemExit(
            f"{missing[0]} can't run: $PEERS must name the kit's folder, with the peer installed "
            f"under $PEERS_ROOT. Known are {', '.join(PEERS)}; here are "
            f"{', '.join(installed()) or 'none'}."
        )
    return asked


def run(
    name: str,
    workload: str,
    *,
    timeout_s: float = 300,
    environment: dict[str, str] | None = None,
) -> dict[str, Any] | None:
    """One run of a peer on fresh data; None, and a line that says why, if it gave no result."""
    peer = PEERS[name]
    options = getattr(peer, workload).split()
    if not options:
        return None
    command = [f"{root()}/{peer.venv}/bin/python", str(peer.runner)]
    command += ["--workload", workload, "--runs", "1", "--quiet", "0", *options]
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as scratch:  # what it leaves goes too
        os.chmod(scratch, 0o777)  # PostgreSQL runs as another user
        given = {"TMPDIR": scratch, "PEERS_ROOT": str(root())}
        runner = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, **given, **peer.environment, **(environment or {})},
        )
        try:
            out, errors = runner.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            print(f"  {name} {workload}: no result within {timeout_s:.0f} s", flush=True)
            return None
        finally:
            if runner.poll() is None:
                processes.end(runner, STOP_S)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if not lines:
        print(f"  {name} {workload}: no result\n{errors[-400:]}", flush=True)
        return None
    return _with_units(lines[-1])


def _with_units(line: dict[str, Any]) -> dict[str, Any]:
    """A result with CPU by unit of work."""
    if line.get("cpu_s"):
        line["cpu_ms_per_workflow"] = line["cpu_s"] * 1000 / line["n"]
        line["cpu_ms_per_step"] = line["cpu_ms_per_workflow"] / 10
    return line


def stop_postgres() -> None:
    """End the kit's PostgreSQL, which its runner leaves running; no other one."""
    where = kit()
    if where is not None and (root() / "pg" / "data" / "postmaster.pid").exists():
        subprocess.run([str(where / "pg.sh"), "stop"], check=False, capture_output=True, timeout=60)
