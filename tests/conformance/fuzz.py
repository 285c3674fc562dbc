"""Requests made at random from the OpenAPI document, against a live server (`make fuzz-api`).

Schemathesis makes them, good and bad ones. No answer may be a 5xx, none may be undocumented in its
status, type or schema. Ends with 1 if one is; the failing requests are shown as curl commands.

    python -m tests.conformance.fuzz [--examples 100] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from tests.conformance.served import OPERATORS_TOKEN, Served, live_server

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
ENDLESS = "/subscribe$"
"""A stream of an instance that sleeps has no end."""
APART = {
    "putWorkflow": {"workflow_name": ["Nap", "new", "a b"]},
    "deleteWorkflow": {"workflow_name": ["Nap", "new", "none"]},
    "changeWorkflowLimits": {"workflow_name": ["Nap", "none"]},
    "changeLimits": {"account_id": ["other", "*"]},
    "deploy": {"account_id": ["other", "*"]},
}
"""Paths of operations after which others would find nothing to do."""


def fuzz(served: Served, folder: Path, examples: int, seed: int) -> int:
    """Run schemathesis; its exit code."""
    document = served_document(served, folder)
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", str(document)]
    command += ["--url", served.url, "--header", f"Authorization: Bearer {OPERATORS_TOKEN}"]
    command += ["--checks", ",".join(CHECKS), "--exclude-path-regex", ENDLESS]
    command += ["--max-examples", str(examples), "--seed", str(seed), "--no-color"]
    command += ["--request-timeout", "45", "--phases", "examples,coverage,fuzzing"]
    return subprocess.run(command, cwd=folder, check=False).returncode  # it keeps files there


def served_document(served: Served, folder: Path) -> Path:
    """The server's document, in which paths lead to what is there (and to some that is not)."""
    base = f"/client/v4/accounts/{served.account}/workflows"
    known: dict[str, list[str]] = {"account_id": [served.account, "other", "*"]}
    known |= {"workflow_name": ["Orders", "Ask", "none"], "event_type": ["answer", "other"]}
    known["instance_id"] = ["folder/7/sync", "order-42", "none"]
    for workflow in ("Orders", "Ask"):
        for name in known["instance_id"][:2]:
            _asked(served, f"{base}/{workflow}/instances", {"instance_id": name, "params": 1})
    known["script_name"] = ["shop_app.py", "none"]
    token = {"name": "n", "scope": "read"}
    made = _asked(served, f"/toque/v1/accounts/{served.account}/tokens", token)["result"]
    known["token_id"] = [made["id"], "none"]
    versions = _asked(served, f"{base}/Orders/versions")["result"]
    known["version_id"] = [*(each["id"] for each in versions), "none"]
    document = _asked(served, "/openapi.json")
    for methods in document["paths"].values():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/zip" in content:  # which it can't make; the server looks at the bytes
                content["application/octet-stream"] = content.pop("application/zip")
            paths = {**known, **APART.get(operation["operationId"], {})}
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["schema"]["enum"] = paths[parameter["name"]]
                    parameter["example"] = paths[parameter["name"]][0]
    path = folder / "openapi.json"
    path.write_text(json.dumps(document))
    return path


def _asked(served: Served, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {OPERATORS_TOKEN}"}
    with urllib.request.urlopen(urllib.request.Request(served.url + path, data, headers)) as answer:
        return json.load(answer)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--examples", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, live_server(Path(folder)) as served:
        return fuzz(served, Path(folder), given.examples, given.seed)


if __name__ == "__main__":
    sys.exit(main())
