"""Bundles: named by content, checked as strangers' data, stored whole or not at all, inspected."""

from __future__ import annotations

import asyncio
import io
import os
import random
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.naming import shown
from toque.actors import keeper
from toque.actors.worker import child_environment
from toque.engines import archive, bundle_store, inspection
from toque.engines.archive import Bundle, hash_of_files
from toque.engines.bundle import bundle_of_file, bundle_of_stored, load_bundle
from toque.engines.bundle_store import BundleStore, Defined, Manifest, check_manifest, read_app
from toque.engines.inspection import inspect_bundle
from toque.runtime import limits
from toque.runtime.errors import BundleInvalid, BundleRefused, CodeMissing

APP = b"""
import toque

class Order(toque.WorkflowEntrypoint):
    name = "order"

    async def run(self, event, step):
        return 1
"""
MANIFEST = Manifest([Defined("order", "Order")])


def zipped(files: list[tuple[Any, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip as others may make it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as writer:
        for name, content in files:
            writer.writestr(name, content)
    return made.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


# --- the core -----------------------------------------------------------------------------------


def test_the_hash_is_of_the_content_alone() -> None:
    files = [("app.py", APP), ("lib/a.py", b"A = 1")]
    one = Bundle.from_zip(zipped(files))
    other = Bundle.from_zip(zipped(files[::-1], zipfile.ZIP_DEFLATED))
    assert one.code_hash == other.code_hash == Bundle(dict(files)).code_hash
    assert one.to_zip() == other.to_zip()
    assert Bundle.from_zip(one.to_zip()).files == dict(files)


def test_no_content_poses_as_another() -> None:
    hashes = {
        hash_of_files(files)
        for files in (
            {"app.py": b"ab"}, {"app.py": b"a"}, {"app.pya": b"b"}, {"app.py": b"a", "b": b""},
            {"app.py": b"", "a": b"b"}, {"app.py": b"a\n1 1\nbb"}, {"b": b"", "app.py": b"ab"},
        )
    }  # fmt: skip
    assert len(hashes) == 7


@pytest.mark.parametrize(
    "name",
    ["/etc/app.py", "../app.py", "a/../app.py", "a//b.py", "./app.py", "a\\b.py", "C:app.py",
     "a\x00.py", "a\n.py", "a./b.py", "a /b.py", "", "x" * 101, "/".join("abcdefghijklmnopq"),
     "\ud800.py"],
    ids=shown,
)  # fmt: skip
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(BundleInvalid):
        Bundle({"app.py": APP, name: b""})


def test_a_name_in_a_zip_is_checked_as_it_was_sent() -> None:
    for name in ("../app.py", "/app.py", "a/../../b.py", "..\\b.py"):
        with pytest.raises(BundleInvalid, match="no name for a file"):
            Bundle.from_zip(zipped([("app.py", APP), (name, b"")]))


def test_what_could_be_one_file_is_refused() -> None:
    with pytest.raises(BundleInvalid, match="same file"):
        Bundle({"app.py": APP, "App.py": b""})
    with pytest.raises(BundleInvalid, match="file and a folder"):
        Bundle({"app.py": APP, "app.py/x": b""})
    with (
        pytest.raises(BundleInvalid, match="twice"),
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        Bundle.from_zip(zipped([("app.py", APP), ("app.py", b"")]))


def test_links_are_refused() -> None:
    with pytest.raises(BundleInvalid, match="link"):
        Bundle.from_zip(zipped([("app.py", APP), (link("etc"), b"/etc")]))


def test_a_bomb_is_refused_before_it_goes_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive.limits, "BUNDLE_UNPACKED_BYTES_MAX", 10_000)
    bomb = zipped([("app.py", b"\0" * 20_000)], zipfile.ZIP_DEFLATED)
    assert len(bomb) < 500
    with pytest.raises(BundleInvalid, match="more than 10000 bytes"):
        Bundle.from_zip(bomb)
    many = zipped([(f"f{n}", b"\0" * 6_000) for n in range(3)], zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleInvalid, match="more than 10000 bytes"):
        Bundle.from_zip(many)
    lying = bomb.replace((20_000).to_bytes(4, "little"), (9_000).to_bytes(4, "little"))
    with pytest.raises(BundleInvalid, match="no zip that can be read"):
        Bundle.from_zip(lying)


def test_too_many_files_are_refused_before_they_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive.limits, "BUNDLE_FILES_MAX", 5)
    raw = zipped([(f"f{n}.py", b"") for n in range(6)])
    monkeypatch.setattr(archive.zipfile, "ZipFile", None)
    with pytest.raises(BundleInvalid, match="more than 5 files"):
        Bundle.from_zip(raw)


@pytest.mark.parametrize("offset", [1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1], ids=hex)
def test_an_entry_that_lies_where_no_file_reaches_is_refused(offset: int) -> None:
    raw = zipped([("app.py", APP)])
    begin, end = raw.index(b"PK\x01\x02"), raw.index(b"PK\x05\x06")
    central, tail = raw[begin:end], raw[end:]
    extra = struct.pack("<HHQ", 1, 8, offset)  # zip64
    central = central[:30] + struct.pack("<H", len(extra)) + central[32:42] + b"\xff" * 4
    central += raw[begin + 46 : end] + extra
    tail = tail[:12] + struct.pack("<I", len(central)) + tail[16:]
    with pytest.raises(BundleInvalid, match="no zip that can be read"):
        Bundle.from_zip(raw[:begin] + central + tail)


def test_what_is_no_zip_is_refused() -> None:
    for raw in (b"", b"PK", b"no zip", zipped([("app.py", APP)])[:-30]):
        with pytest.raises(BundleInvalid, match="no zip that can be read"):
            Bundle.from_zip(raw)


def test_other_compressions_are_refused() -> None:
    with pytest.raises(BundleInvalid, match="compressed in a way"):
        Bundle.from_zip(zipped([("app.py", APP)], zipfile.ZIP_LZMA))


@pytest.mark.parametrize(
    ("names", "entry"),
    [
        (["app.py", "main.py", "x.py"], "app.py"),
        (["main.py", "x.py"], "main.py"),
        (["flow.py", "lib/__init__.py", "data.json"], "flow.py"),
        (["pkg/__init__.py", "pkg/flows.py", "pkg/sub/__init__.py"], "pkg/__init__.py"),
        (["a.py", "b.py"], None),
        (["a/__init__.py", "b/__init__.py"], None),
        (["my-pkg/__init__.py"], None),
        (["readme.md"], None),
    ],
    ids=shown,
)
def test_the_entry_is_found_by_name(names: list[str], entry: str | None) -> None:
    if entry is not None:
        assert archive.entry_of(names) == entry
        return
    with pytest.raises(BundleInvalid, match=r"app\.py"):
        archive.entry_of(names)


# --- from disk, and on disk ---------------------------------------------------------------------


def test_a_folder_is_taken_without_what_is_no_code(tmp_path: Path) -> None:
    for name in ("app.py", "lib/x.py", "lib/t.txt", ".git/x.py", "lib/__pycache__/x.pyc", ".env",
                 "venv/pyvenv.cfg", "venv/lib.py", "data/toque.json", "data/x"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    assert sorted(read_app(tmp_path).files) == ["app.py", "lib/t.txt", "lib/x.py"]
    (tmp_path / "lib" / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(BundleInvalid, match=r"lib/link\.py is a link"):
        read_app(tmp_path)


def test_a_package_keeps_its_name_and_a_file_is_alone(tmp_path: Path) -> None:
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    assert list(read_app(folder).files) == ["flows/__init__.py"]
    (tmp_path / "my-app.py").write_bytes(APP)
    assert read_app(tmp_path / "my-app.py").files == {"my-app.py": APP}
    for wrong in ("nothing.py", "flows/no.txt"):
        with pytest.raises(BundleInvalid):
            read_app(tmp_path / wrong)


def test_a_bundle_is_stored_and_unpacked_once(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles")
    bundle = Bundle({"app.py": APP, "lib/a.py": b"A = 1"})
    assert store.manifest(bundle.code_hash) is None
    code_hash = store.put(bundle, MANIFEST)
    again = BundleStore(tmp_path / "bundles")
    assert again.manifest(code_hash) == MANIFEST
    assert again.get(code_hash).files == bundle.files
    folder = again.unpacked(code_hash)
    assert (folder / "lib" / "a.py").read_bytes() == b"A = 1"
    assert stat.S_IMODE((folder / "app.py").stat().st_mode) == 0o444
    assert stat.S_IMODE((folder / "lib").stat().st_mode) == 0o555
    number = folder.stat().st_ino
    assert store.unpacked(code_hash).stat().st_ino == number
    assert sorted(path.name for path in (tmp_path / "bundles").iterdir()) == [
        code_hash, f"{code_hash}.json", f"{code_hash}.zip",
    ]  # fmt: skip


def test_a_bundle_that_was_packed_better_than_it_is_stored_is_found_again(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(limits.BUNDLE_BYTES_MAX - 1_000)  # packed, it is longer
    bundle = Bundle.from_zip(zipped([("app.py", APP), ("noise", noise)]))
    assert len(bundle.to_zip()) > limits.BUNDLE_BYTES_MAX
    store = BundleStore(tmp_path / "bundles")
    assert store.get(store.put(bundle, MANIFEST)).files == bundle.files


def test_two_may_unpack_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BundleStore(tmp_path)
    code_hash = store.put(Bundle({"app.py": APP}), MANIFEST)
    write = bundle_store.write_files

    def while_another_does(folder: Path, files: dict[str, bytes]) -> None:
        monkeypatch.setattr(bundle_store, "write_files", write)
        assert BundleStore(tmp_path).unpacked(code_hash).is_dir()
        write(folder, files)

    monkeypatch.setattr(bundle_store, "write_files", while_another_does)
    assert (store.unpacked(code_hash) / "app.py").read_bytes() == APP
    assert not list(tmp_path.glob("*.tmp"))


def test_a_crash_while_writing_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BundleStore(tmp_path / "b")
    bundle = Bundle({"app.py": APP})

    def crash(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bundle_store.os, "replace", crash)
        patch.setattr(bundle_store.Path, "unlink", lambda *args, **kwargs: None)
        with pytest.raises(KeyboardInterrupt):
            store.put(bundle, MANIFEST)
    assert store.manifest(bundle.code_hash) is None
    store.put(bundle, MANIFEST)
    with monkeypatch.context() as patch:
        patch.setattr(bundle_store.os, "rename", crash)
        patch.setattr(bundle_store, "remove_files", lambda folder: None)
        with pytest.raises(KeyboardInterrupt):
            store.unpacked(bundle.code_hash)
    assert len(list(store.folder.glob("*.tmp"))) == 2
    store.sweep()
    assert not list(store.folder.glob("*.tmp"))
    assert store.unpacked(bundle.code_hash).is_dir()


def test_damage_and_absence_are_told(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    for unknown in ("0" * 64, "../../etc", ""):
        assert store.manifest(unknown) is None
        with pytest.raises(CodeMissing, match="not stored here"):
            store.unpacked(unknown)
    code_hash = store.put(Bundle({"app.py": APP}), MANIFEST)
    (tmp_path / f"{code_hash}.zip").write_bytes(Bundle({"app.py": b"evil = 1"}).to_zip())
    with pytest.raises(CodeMissing, match="another hash"):
        store.unpacked(code_hash)
    (tmp_path / f"{code_hash}.zip").write_bytes(b"torn")
    with pytest.raises(CodeMissing, match="damaged"):
        store.unpacked(code_hash)


def test_an_edited_file_is_loaded_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_bytes(APP)
    bundle = read_app(path)
    store = BundleStore(tmp_path / "bundles")
    store.put(bundle, MANIFEST)
    how = bundle_of_file(path, bundle.code_hash, str(store.folder))
    assert [d.name for d in load_bundle(how)] == ["order"]
    path.write_bytes(APP.replace(b'"order"', b'"other"'))
    found = load_in_child(how)
    assert found == f"order {bundle.code_hash}\n"
    assert load_in_child(bundle_of_stored(bundle.code_hash, str(store.folder), [])) == found


def load_in_child(how: dict[str, Any]) -> str:
    """What a fresh interpreter loads (one can hold one bundle)."""
    code = (
        "from toque.engines.bundle import load_bundle\n"
        f"for d in load_bundle({how!r}): print(d.name, d.code_hash)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


# --- inspection ---------------------------------------------------------------------------------


async def test_a_package_and_its_modules_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOQUE_TOKEN", "secret")
    flows = b"""
import os
from toque import WorkflowEntrypoint, WorkflowEvent
from .base import Base

assert "TOQUE_TOKEN" not in os.environ
print("noise that is no report")

class Order(Base):
    placement = "actor"
    ray_options = {"num_cpus": 1}

    async def run(self, event: WorkflowEvent[int], step):
        return 1
"""
    base = b"import toque\n\nclass Base(toque.WorkflowEntrypoint):\n    pass\n"
    files = {"pkg/__init__.py": b"from .flows import Order", "pkg/flows.py": flows}
    found = await inspect_bundle(Bundle({**files, "pkg/base.py": base}))
    assert found.workflows == [Defined("Order", "Order", "actor", {"num_cpus": 1}, True)]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (b"x = 1\nprint('so far')\nraise ValueError('no')", r"app\.py, line 3: ValueError: no"),
        (b"import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        (b"x = 1", "it defines no workflow"),
        (b"import os; os._exit(0)", "ended with exit code 0"),
        (b"import os; os.kill(os.getpid(), 9)", "ended by signal 9"),
        (
            b"import os; [os.write(fd, b'{\"manifest\": 7}') for fd in range(3, 9)]",
            "ended with|OSE",
        ),
        (b"x = bytearray(1 << 40)", "MemoryError"),
        (b"import toque\n@toque.workflow(name='a b')\nasync def f(event, step): ...", "'a b'"),
    ],
    ids=["raises", "import", "empty", "exit", "killed", "forged", "memory", "name"],
)
async def test_code_that_does_not_load_is_refused_with_its_reason(code: bytes, why: str) -> None:
    with pytest.raises(BundleRefused, match=why) as caught:
        await inspect_bundle(Bundle({"app.py": code}))
    if b"so far" in code:
        assert "so far" in str(caught.value)
        assert "Traceback" in str(caught.value)


async def test_code_that_puts_pipes_in_the_place_of_its_reports_holds_nobody_up() -> None:
    swap = b"import os\nfor f in ('told', 'printed'): os.unlink(f); os.mkfifo(f)\n"
    asked = asyncio.create_task(inspect_bundle(Bundle({"app.py": swap + APP})))
    assert (await asyncio.wait_for(asked, 30)).workflows == [
        Defined("order", "Order"),
    ]


def has_ended(pid: int) -> bool:
    """Whether a process that was killed is gone, or soon is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    return keeper.wait_ended(descriptor, 10_000)


async def test_code_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    code = f"""
import os, signal
child = os.fork()
with open({str(pids)!r}, "w") as file:
    file.write(f"{{os.getpid()}}\\n")
signal.pause()
"""
    bundle = Bundle({"app.py": code.encode()})
    with pytest.raises(BundleRefused, match=r"did not import within 0\.001 s"):
        await inspect_bundle(bundle, timeout_ms=1)
    inspecting = asyncio.ensure_future(inspect_bundle(bundle))
    found: list[int] = []
    while len(found) < 2:
        found += map(int, (await asyncio.to_thread(pids.read_text)).split())
    inspecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await inspecting
    for pid in found:
        assert await asyncio.to_thread(has_ended, pid)


async def test_what_code_leaves_behind_ends_with_its_import(tmp_path: Path) -> None:
    """Also what has left its session and lost its parent."""
    pid = tmp_path / "pid"
    code = f"""
import os, signal
import toque
reads, writes = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open({str(pid)!r}, "w") as file:
            file.write(str(os.getpid()))
        os.write(writes, b"x")
        signal.pause()
    os._exit(0)
os.read(reads, 1)

@toque.workflow
async def order(event, step): ...
"""
    scratch = tmp_path / "bundles"
    found = await inspect_bundle(Bundle({"app.py": code.encode()}), scratch)
    assert [one.name for one in found.workflows] == ["order"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert list(scratch.iterdir()) == []


def test_what_an_interrupted_import_leaves_is_swept(tmp_path: Path) -> None:
    folder = inspection._passing_folder(tmp_path)
    inspection._lay_out(folder / "code", Bundle({"app.py": b"x = 1"}))
    BundleStore(tmp_path).sweep()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest([]),
        Manifest([Defined("a", "A"), Defined("a", "B")]),
        Manifest([Defined("a b", "A")]),
        Manifest([Defined("a", "A b")]),
        Manifest([Defined("a", "A", "moon")]),
        Manifest([Defined("a", "A", "actor", {"name": "x"})]),
    ],
    ids=shown,
)
def test_what_a_child_tells_is_checked(manifest: Manifest) -> None:
    with pytest.raises(BundleInvalid):
        check_manifest(manifest)


def test_the_child_gets_no_secrets() -> None:
    kept = child_environment({"PATH": "/bin", "TOQUE_TOKEN": "x", "AWS_KEY": "y", "LC_ALL": "C"})
    assert kept == {"PATH": "/bin", "LC_ALL": "C"}
    assert os.environ is not kept
    assert inspection.limits.BUNDLE_IMPORT_MAX_MS > 1_000
