"""A shard's process imports what it needs to open: it is back the sooner after a kill."""

from __future__ import annotations

import subprocess
import sys


def test_a_shards_process_imports_no_client_and_no_front_end() -> None:
    code = "import sys, toque.api.shard_ray; print(*sorted(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(told.stdout.split())
    assert "toque.api.shards" in loaded
    unwanted = {"toque.api.client", "toque.api.service", "toque.api.wiring", "aiohttp", "typer"}
    unwanted |= {"toque.api.server_http", "prometheus_client", "rich"}
    assert not loaded & unwanted, loaded & unwanted
