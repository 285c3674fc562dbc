"""What lies in deploy/ is well-formed, names what there is, and its start commands work."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.serving import up

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
SUFFIXES = ("_bucket", "_sum", "_count")


def documents(name: str) -> list[Any]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def unit() -> configparser.ConfigParser:
    """The systemd unit."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "toque.service")
    return parser


def container_command() -> list[str]:
    """What the container runs."""
    (line,) = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    found: list[str] = json.loads(line)
    return found


def expressions() -> list[str]:
    """Every expression of the dashboard and of the alerts."""
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    (alerts,) = documents("toque-alerts.yml")
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [entry["query"] for entry in dashboard["templating"]["list"]]
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    return [*shown, *asked, *rules]


def test_every_metric_that_is_shown_is_in_the_documents() -> None:
    told = (ROOT / "docs" / "deployment.md").read_text()
    known = set(re.findall(r"`(toque_\w+)`", told))
    named = {name for text in expressions() for name in re.findall(r"\btoque_\w+", text)}
    assert len(named) > 15
    for name in sorted(named):
        bare = next((name.removesuffix(s) for s in SUFFIXES if name.endswith(s)), name)
        assert name in known or bare in known, name


def test_the_files_for_kubernetes_and_prometheus_are_well_formed() -> None:
    kinds = [document["kind"] for name in ("kubernetes.yaml", "raycluster.yaml")
             for document in documents(name)]  # fmt: skip
    assert kinds == ["Service", "StatefulSet", "RayCluster"]
    _, stateful = documents("kubernetes.yaml")
    assert stateful["spec"]["replicas"] == 1  # a data directory has one owner
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["image"] == f"toque:{version('toque')}"
    (prometheus,) = documents("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert all((DEPLOY / name).is_file() for name in prometheus["rule_files"])


def test_the_unit_is_told_when_the_server_is_ready_and_knows_when_not_to_restart() -> None:
    service = unit()["Service"]
    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["ProtectSystem"] == "strict"


def test_the_container_is_nobody_and_asks_whether_it_is_ready() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert re.search(r"^USER \d+$", text, re.MULTILINE)
    (check,) = re.findall(r"CMD (\[.*readyz.*\])$", text, re.MULTILINE)
    compile(json.loads(check)[2], "check", "exec")


def placed(words: list[str], folder: Path) -> list[str]:
    """A start command with its paths put into a folder, its address on loopback, any free port."""
    given = {
        "--data": str(folder / "data"),
        "--first-token-file": str(folder / "token"),
        "--host": "127.0.0.1",
        "--port": "0",
        "--metrics-port": "0",
    }
    assert Path(words[0]).name == "toque"
    assert words[1] == "up"
    return [given.get(before, word) for before, word in pairwise(words[1:])]


@pytest.mark.parametrize(
    "source",
    ["container", pytest.param("unit", marks=pytest.mark.cluster)],
)
def test_the_start_commands_serve(source: str, tmp_path: Path) -> None:
    words = container_command()
    if source == "unit":
        words = shlex.split(unit()["Service"]["ExecStart"])
    with up(tmp_path, placed(words, tmp_path)) as served:
        assert served.get("/readyz") == (200, {"status": "ready"})
        token = (tmp_path / "token").read_text().strip()
        assert served.get("/toque/v1/whoami", token)[0] == 200
        status, page = served.get("/metrics", token)
        assert status == 200
        named = {name for text in expressions() for name in re.findall(r"\btoque_\w+", text)}
        typed = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
        shown = typed | {name + suffix for name in typed for suffix in SUFFIXES}
        assert named <= shown, sorted(named - shown)
