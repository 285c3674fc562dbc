"""Codecs of payloads at rest: what is on disk, what stays readable, and what is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import toque
from toque.engines.codec_names import codecs_of, names_of
from toque.runtime.errors import InvalidArgument
from toque.runtime.payload_codec import (
    CodecFailed,
    CodecMissing,
    Codecs,
    CodecWrong,
    Seal,
    ZlibCodec,
)

SECRET = "a word that nobody may read " * 40


class Xor:
    """A toy that hides things from a test."""

    def __init__(self, key: int, id: str = "xor") -> None:
        self.id = id
        self._key = key

    def encode(self, raw: bytes) -> bytes:
        return bytes(byte ^ self._key for byte in raw)

    decode = encode


@toque.workflow
async def keep(event: toque.WorkflowEvent[str], step: toque.WorkflowStep) -> Any:
    """Puts the secret everywhere: params, result, event, error of an attempt, output."""

    def fails(ctx: toque.StepContext) -> str:
        if ctx.attempt == 1:
            raise toque.StepFailed(f"not now: {event.payload}", {"why": event.payload})
        return event.payload

    first = await step.do("first", fails, {"retries": {"limit": 1, "delay": 0}})
    got = await step.wait_for_event("go", "go")
    await step.wait_for_event("more", "more")
    return [first, got.payload]


def on_disk(data: Path) -> bytes:
    """All that is in the data directory."""
    return b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())


async def begun(data: Path, codecs: Any, id: str = "one") -> None:
    """An instance that has got as far as it gets by itself."""
    async with toque.embedded(data, [keep], codecs=codecs) as runtime:
        instance = await runtime.client().create_instance("keep", id, SECRET)
        await instance.send_event("go", SECRET)
        await instance.send_event("later", SECRET)
        while True:
            status = await instance.status()
            if [one.name for one in status.steps if one.finished] == ["go-1"]:
                break


async def ended(data: Path, codecs: Any, id: str = "one") -> Any:
    """Its output."""
    async with toque.embedded(data, [keep], codecs=codecs) as runtime:
        instance = runtime.client().instance("keep", id)
        await instance.send_event("more")
        return await instance.output(timeout=20)


@pytest.mark.parametrize("codec", [Xor(90), ZlibCodec()], ids=["xor", "zlib"])
async def test_nothing_readable_is_on_disk_and_all_comes_back(tmp_path: Path, codec: Any) -> None:
    data = tmp_path / "data"
    await begun(data, {"default": codec})
    assert SECRET[:28].encode() * 2 not in on_disk(data)
    assert await ended(data, {"default": codec}) == [SECRET, SECRET]
    assert SECRET[:28].encode() * 2 not in on_disk(data)


async def test_without_a_codec_it_is_there(tmp_path: Path) -> None:
    await begun(tmp_path / "data", None)
    assert SECRET[:28].encode() * 2 in on_disk(tmp_path / "data")


async def test_what_older_codecs_wrote_stays_readable(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await begun(data, None, "plain")
    await begun(data, {"default": Xor(1, "old")}, "old")
    newest = {"default": [Xor(2, "new"), Xor(1, "old")]}
    await begun(data, newest, "new")
    for id in ("plain", "old", "new"):
        assert await ended(data, newest, id) == [SECRET, SECRET]


async def test_another_account_has_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await begun(data, {"other": Xor(3)})
    assert SECRET.encode() in on_disk(data)


async def test_a_missing_codec_is_named_before_anything_is_touched(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await begun(data, {"default": Xor(4, "vault-1")})
    for codecs in (None, {"default": ZlibCodec()}, {"other": Xor(4, "vault-1")}):
        with pytest.raises(CodecMissing, match=r"account 'default' .* codec 'vault-1'") as caught:
            await ended(data, codecs)
        assert caught.value.data == {"codec": "vault-1", "account": "default"}
    assert await ended(data, {"default": Xor(4, "vault-1")}) == [SECRET, SECRET]


async def test_a_codec_with_another_key_is_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await begun(data, {"default": Xor(5, "vault-1")})
    with pytest.raises(CodecWrong, match=r"codec 'vault-1' of account 'default'"):
        await ended(data, {"default": Xor(6, "vault-1")})
    assert await ended(data, {"default": Xor(5, "vault-1")}) == [SECRET, SECRET]


class Broken(Xor):
    """Stops working after a while."""

    works = True

    def decode(self, kept: bytes) -> bytes:
        if not self.works:
            raise ValueError("the key is gone")
        return super().decode(kept)


def test_a_codec_that_fails_is_named() -> None:
    codec = Broken(7, "vault")
    seal = Seal("acc", [codec])
    kept = seal.close(b"5")
    codec.works = False
    with pytest.raises(CodecFailed, match="codec 'vault' of account 'acc' can't decode") as caught:
        seal.open(kept)
    assert caught.value.data == {"codec": "vault", "account": "acc"}


class Texts(Xor):
    """Gives something else than bytes."""

    def encode(self, raw: bytes) -> Any:
        return "text"


class Forgets(Xor):
    """Does not give back what it was given."""

    def decode(self, kept: bytes) -> bytes:
        return b"x"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (5, "is no codec"),
        (ZlibCodec, "is no codec"),
        (Xor(1, "a b"), "the codec id 'a b'"),
        (Xor(1, ""), "the codec id ''"),
        (Forgets(1), "does not give back"),
        ([Xor(1), Xor(2)], "have the same id"),
    ],
    ids=["number", "class", "space", "empty", "forgets", "twice"],
)
def test_what_is_no_codec_is_refused(given: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        Codecs({"default": given})
    with pytest.raises(CodecFailed, match="gave a str in encode"):
        Codecs({"default": Texts(1)})


FILE = """
class Hide:
    id = "hide"

    def encode(self, raw):
        return raw[::-1]

    decode = encode


codec = Hide()


def made():
    return Hide()
"""


@pytest.mark.parametrize("attribute", ["codec", "Hide", "made"])
async def test_codecs_by_name(tmp_path: Path, attribute: str) -> None:
    file = tmp_path / "hide.py"
    file.write_text(FILE)
    named = {"default": f"{file}:{attribute}"}
    data = tmp_path / "data"
    await begun(data, named)
    assert SECRET.encode() not in on_disk(data)
    assert names_of(named) == {"default": [f"{file.resolve()}:{attribute}"]}
    assert await ended(data, named) == [SECRET, SECRET]


@pytest.mark.parametrize("name", ["nowhere:codec", "toque:nothing", "none.py:codec", "x"])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="can't be had"):
        codecs_of({"default": name})


def test_what_has_no_name_is_refused_where_names_are_needed() -> None:
    with pytest.raises(InvalidArgument, match="can't be carried"):
        names_of({"default": Xor(1)})


async def test_short_payloads_are_not_made_longer_by_compression(tmp_path: Path) -> None:
    codec = ZlibCodec()
    assert len(codec.encode(b"5")) == 2
    long = b"abc" * 1_000
    assert len(codec.encode(long)) < 100
    assert codec.decode(codec.encode(long)) == long
    await begun(tmp_path / "data", {"default": codec})
    with sqlite3.connect(tmp_path / "data/shards/d0.sqlite") as rows:
        heads = {row[0][:6] for row in rows.execute("SELECT blob FROM steps")}
    rows.close()
    assert heads == {b"\x00\x04zlib"}
