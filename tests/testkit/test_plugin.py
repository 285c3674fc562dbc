"""The pytest plugin, as pytest loads it: seeds, options, what a failure says, xdist.

Each test runs a pytest of its own in an empty folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import asyncio
from toque import workflow
from toque.testing import toque_seeds

@workflow
async def greet(event, step):
    return await step.do("greet", lambda: f"hello {event.payload}")
"""


def run_pytest(folder: Path, tests: str, *options: str) -> tuple[int, str]:
    """The exit code and what it printed; there are no plugins but this one, and what options load.

    That it is loaded unasked another test shows.
    """
    (folder / "test_app.py").write_text(APP + tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(
        [*command, "-p", "toque.testkit.plugin_pytest", *options],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_seeds_are_tests_of_their_own_and_xdist_spreads_them(tmp_path: Path) -> None:
    tests = """
@toque_seeds(6)
def test_greeting(toque_sim):
    with toque_sim(greet) as sim:
        assert sim.create(greet, "you").result() == "hello you"

async def test_async(toque_sim):
    await asyncio.sleep(0)
    assert toque_sim(greet).create(greet, 1).result() == "hello 1"

def test_without(toque_seed, toque_sim):
    assert toque_seed is None is toque_sim.seed
"""
    code, said = run_pytest(tmp_path, tests, "-p", "xdist", "-n", "2", "-v")
    assert code == 0, said
    assert "8 passed" in said
    assert "test_greeting[seed5]" in said
    code, said = run_pytest(tmp_path, tests, "--toque-seeds", "3", "-v")
    assert (code, "5 passed" in said, "seed2]" in said, "seed3]" in said) == (0, True, True, False)


def test_a_failure_says_how_to_play_it_again(tmp_path: Path) -> None:
    tests = """
@toque_seeds(4)
def test_greeting(toque_sim):
    with toque_sim(greet) as sim:
        print("digest", sim.seed, sim.create(greet, "you").result() and sim.digest)
        assert sim.seed != 3
"""
    code, said = run_pytest(tmp_path, tests, "-rP")
    assert code == 1
    assert "1 failed, 3 passed" in said
    assert "simulation 1, seed 3, mishaps: " in said
    assert "greet '" in said
    assert "is complete" in said
    digests = dict(re.findall(r"digest (\d) (\w+)", said))
    assert len(set(digests.values())) == 4
    again = re.search(r"^again: pytest (.*)$", said, re.MULTILINE)
    assert again is not None
    assert again[1] == "'test_app.py::test_greeting[seed3]' --toque-seed 3"
    code, said = run_pytest(
        tmp_path, tests, "test_app.py::test_greeting[seed3]", "--toque-seed", "3"
    )
    assert (code, "1 failed" in said) == (1, True)
    assert re.findall(r"digest (\d) (\w+)", said) == [("3", digests["3"])]
    code, said = run_pytest(tmp_path, tests, "--toque-seed", "123456")
    assert (code, "1 passed" in said) == (0, True)


def test_wrong_marks_are_errors_of_usage(tmp_path: Path) -> None:
    wrong = {
        "takes no `toque_sim`": "@toque_seeds(3)\ndef test_x(): pass",
        "test_bare.py::test_x: toque_seeds takes how many": (
            "@toque_seeds\ndef test_x(toque_sim): 1"
        ),
        "test_none.py::test_x: toque_seeds takes how many": (
            "@toque_seeds(0)\ndef test_x(toque_sim): 1"
        ),
        "test_word.py::test_x: toque_seeds takes how many": (
            "@toque_seeds(n=3)\ndef test_x(toque_sim): 1"
        ),
    }
    for name, tests in zip(("lone", "bare", "none", "word"), wrong.values(), strict=True):
        (tmp_path / f"test_{name}.py").write_text(APP + tests)
    code, said = run_pytest(tmp_path, "")
    assert code in (2, 4)
    assert [match for match in wrong if match not in said] == []
    assert "INTERNALERROR" not in said


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [("--toque-seeds", "0", "from 1 to 100000"), ("--toque-seed", "-4", "a seed is 0 or more")],
)
def test_wrong_options_are_errors_of_usage(
    tmp_path: Path, option: str, value: str, match: str
) -> None:
    code, said = run_pytest(tmp_path, "", option, value)
    assert code == 4
    assert match in said


def test_pytest_without_such_tests_loads_nothing_of_toque(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        "def test_plain():\n"
        "    assert 'toque.testkit.plugin_pytest' in sys.modules\n"
        "    assert not {'toque.api', 'toque.engines', 'ray'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_public_names_are_there_and_bring_no_ray() -> None:
    code = (
        "import sys, toque.testing as t\n"
        "assert 'pytest' not in sys.modules\n"
        "assert [getattr(t, name) for name in t.__all__ if name != 'toque_seeds']\n"
        "assert not {'pytest', 'ray', 'fastapi'} & set(sys.modules)\n"
        "assert set(t.__all__) <= set(dir(t))\n"
        "try: t.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "module 'toque.testing' has no attribute 'nothing'" in done.stdout
