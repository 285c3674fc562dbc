"""Writes the schema's example anew: `python -m tests.loadtest.example`."""

from __future__ import annotations

from pathlib import Path

from tests.loadtest import made
from toque.loadtest.result import encode_result

if __name__ == "__main__":
    Path(__file__).with_name("example.json").write_bytes(encode_result(made.example()))
