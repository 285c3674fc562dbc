"""The tables of the documents show each limit as people read it: with its unit, no fraction."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from toque.api import cli_exits
from toque.runtime import limits
from toque.runtime.errors import ToqueError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs"))
tables = import_module("tables")
NUMBERS = {
    name: value for name, value in vars(limits).items() if name.isupper() and type(value) is int
}
for _base in ("KIB", "MIB"):
    del NUMBERS[_base]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("SOCKET_PATH_BYTES_MAX", 100, "100 bytes"),
        ("INLINE_PAYLOAD_BYTES_MAX", 512, "512 bytes"),
        ("X_BYTES_MAX", 1_025, "1,025 bytes"),
        ("BODY_BYTES_MAX", 1_088 * 1_024, "1,088 KiB"),
        ("STREAM_BYTES_MAX", 1_024 * limits.MIB, "1 GiB"),
        ("BATCH_BYTES_RESERVED", 16 * limits.MIB, "16 MiB"),
        ("BUNDLE_IMPORT_MEMORY_BYTES_MAX", 2_048 * limits.MIB, "2 GiB"),
        ("STORE_CACHE_KIB", 16_384, "16 MiB"),
        ("BUNDLE_END_MAX_MS", 5_000, "5 s"),
        ("RECONNECT_MAX_MS", 100, "100 ms"),
        ("X_MS", 1_500, "1,500 ms"),
        ("X_MS", 90_000, "90 s"),
        ("ERROR_MESSAGE_CHARS_MAX", 4_096, "4,096 characters"),
        ("CYCLE_JITTER_PERCENT", 1, "1 %"),
        ("CREATES_PER_SECOND_DEFAULT", 300, "300 a second"),
        ("STEPS_PER_INSTANCE_MAX", 25_000, "25,000"),
        ("GC_THRESHOLDS", (50_000, 20, 50), "50,000, 20, 50"),
    ],
    ids=lambda value: str(value) if type(value) is str else "",
)
def test_a_value_has_the_largest_unit_without_a_fraction(
    name: str, value: int | tuple[int, ...], shown: str
) -> None:
    assert tables.readable(name, value) == shown


def test_every_limit_is_read_back_from_what_is_shown() -> None:
    units = {
        "bytes": 1, "KiB": limits.KIB, "MiB": limits.MIB, "GiB": 1024 * limits.MIB,
        "ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
        "characters": 1, "%": 1, "a second": 1, "": 1,
    }  # fmt: skip
    for name, value in NUMBERS.items():
        number, _, unit = tables.readable(name, value).partition(" ")
        scale = limits.KIB if name.endswith("_KIB") else 1
        assert re.fullmatch(r"\d{1,3}(,\d{3})*", number), name
        assert int(number.replace(",", "")) * units[unit] == value * scale, name


def test_a_size_or_a_time_says_so_by_its_name() -> None:
    for name, value in NUMBERS.items():
        whole = value >= 64 * limits.KIB and value % limits.KIB == 0
        if whole:
            assert not tables.readable(name, value).replace(",", "").isdigit(), name


def test_every_error_has_an_exit_code() -> None:
    tables.error_modules()
    kinds = {kind.code: kind for kind in cli_exits._kinds(ToqueError)}
    own = {c: k for c, k in kinds.items() if k.__module__.startswith("toque.")}
    assert set(own) - set(cli_exits.EXIT_OF) == set()
    assert set(cli_exits.EXIT_OF) - set(own) == set(), "of errors that there are not"
    assert set(cli_exits.EXIT_OF.values()) <= set(cli_exits.MEANINGS)
    for code, kind in own.items():
        number = cli_exits.EXIT_OF[code]
        assert cli_exits.exit_code(kind("x")) == number
        if kind.retryable:
            assert number == cli_exits.UNAVAILABLE, code
        if number in (cli_exits.USAGE, cli_exits.NOT_FOUND, cli_exits.REFUSED):
            assert not kind.retryable
        if kind.status in (401, 403):
            assert number == cli_exits.REFUSED
        if kind.status == 404:
            assert number == cli_exits.NOT_FOUND
        alone = cli_exits.exit_code_of_many([kind.number], some_done=False)
        assert alone == number or kind.number in (10001, 10506), code
