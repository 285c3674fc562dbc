"""The public face: every name is there, and importing it brings nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import toque


def test_every_public_name_is_there() -> None:
    for name in toque.__all__:
        assert getattr(toque, name) is not None
        assert name in dir(toque)
    assert sorted(toque.__all__) == toque.__all__
    assert set(toque.__all__) == set(toque._HOME_OF)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = toque.nothing


def test_importing_the_face_and_the_command_line_is_light() -> None:
    program = (
        "import sys, toque; toque.WorkflowEntrypoint; "
        "assert not {'ray', 'fastapi', 'aiohttp', 'sqlite3'} & set(sys.modules); "
        "import toque.api.cli; toque.connect; "
        "assert not {'ray', 'fastapi', 'uvicorn', 'sqlite3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
