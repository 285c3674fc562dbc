"""What Ray may use of the machine, as `dev` and `up` are told, and what no node has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toque.actors.fit import UNMET, unmet
from toque.api.cli import app
from toque.api.cli_machine import of_machine
from toque.runtime.errors import InvalidArgument


@pytest.mark.parametrize(
    "given",
    ["", "fast_disk", "[]", '{"fast_disk": "one"}', '{"fast_disk": -1}', '{"CPU": 1}', '{"": 1}'],
)
def test_resources_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(InvalidArgument, match="--resources"):
        of_machine(None, given, False)


def test_they_are_told_and_go_with_a_ray_of_ones_own_only() -> None:
    told = {"num_cpus": 4, "resources": {"fast_disk": 1.0}}
    assert of_machine(4, '{"fast_disk": 1}', False) == told
    assert of_machine(None, None, True, "auto") == {}
    with pytest.raises(InvalidArgument, match="no Ray"):
        of_machine(4, None, True)
    with pytest.raises(InvalidArgument, match="--ray-address"):
        of_machine(None, '{"fast_disk": 1}', False, "auto")


@pytest.mark.parametrize("command", ["dev", "up"])
def test_the_commands_take_them(command: str, tmp_path: Path) -> None:
    words = [command, "--embedded", "--data", str(tmp_path / "data"), "--num-cpus", "2"]
    done = CliRunner().invoke(app, [*words, *(["app.py"] if command == "dev" else [])])
    assert done.exit_code == 2
    assert "with --embedded there is no Ray" in done.stderr
    assert not (tmp_path / "data").exists()


SMALL = {"Alive": True, "Resources": {"CPU": 2.0, "memory": 10**9}}
LARGE = {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 1.0, "fast_disk": 1.0}}


@pytest.mark.parametrize(
    ("options", "nodes", "told"),
    [
        ({"num_cpus": 2}, [SMALL], ""),
        ({"num_cpus": 3}, [SMALL], UNMET),
        ({"num_cpus": 3}, [SMALL, LARGE], ""),
        ({"num_cpus": 3}, [SMALL, {**LARGE, "Alive": False}], UNMET),
        ({"num_gpus": 1}, [SMALL], UNMET),
        ({"num_gpus": 0, "resources": {"fast_disk": 0}}, [SMALL], ""),
        ({"resources": {"fast_disk": 1}}, [SMALL], UNMET),
        ({"num_gpus": 1, "memory": 10**9}, [SMALL, LARGE], UNMET),  # each has one of them
        ({"num_gpus": 1}, [], ""),
        ({"runtime_env": {"env_vars": {}}}, [SMALL], ""),
    ],
)
def test_what_no_node_has_is_told(options: Any, nodes: Any, told: str) -> None:
    assert unmet(options, nodes) == told
