"""Bundles: the code of an app as a set of files, named by its content.

A bundle travels as a zip, but a zip is only its coat: what counts are the paths and the bytes
under them. `code_hash` is taken over those, so that packing again, in another order or by another
program, changes nothing; and a bundle is always written in one canonical form.

Everything in a zip that came from outside is checked before it is believed: number and sizes of
files as they are read, not only as declared; names (relative, no `..`, no links, no two that a
file system could take for one). What is refused is refused as a whole, with `BundleInvalid`.
"""

from __future__ import annotations

import hashlib
import io
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import PurePosixPath

from ..runtime import limits
from ..runtime.errors import BundleInvalid

_SEGMENT = re.compile(r'[^\x00-\x1f\x7f/\\:*?"<>|]{1,100}\Z')
_HASH = re.compile(r"[0-9a-f]{64}\Z")
_ENTRIES = ("app.py", "main.py")
_MARK = b"toque bundle 1\n"
_CENTRAL = b"PK\x01\x02"
_LEVEL = 6
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,  # an offset that no file can have
    ValueError,
)


class Bundle:
    """The files of an app: content by relative path. Never changed once made.

    Args:
        files: content by path (`/` between folders), checked here.

    Raises:
        BundleInvalid
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        check_files(files)
        self.files = dict(sorted(files.items()))

    @cached_property
    def code_hash(self) -> str:
        """SHA-256 over paths and contents, in hexadecimal; see `hash_of_files`."""
        return hash_of_files(self.files)

    @property
    def entry(self) -> str:
        """The path that is imported; see `entry_of`."""
        return entry_of(self.files)

    def to_zip(self) -> bytes:
        """The canonical zip: the same files give the same bytes."""
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            for path, content in self.files.items():
                info = zipfile.ZipInfo(path)  # of 1980-01-01: no time of its own
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = (stat.S_IFREG | 0o444) << 16
                archive.writestr(info, content)
        return made.getvalue()

    @classmethod
    def from_zip(cls, raw: bytes, bytes_max: int = limits.BUNDLE_BYTES_MAX) -> Bundle:
        """The bundle in a zip that nobody has vouched for.

        Raises:
            BundleInvalid
        """
        if len(raw) > bytes_max:
            raise BundleInvalid(f"the bundle has {len(raw)} bytes; at most {bytes_max} are taken.")
        if raw.count(_CENTRAL) > limits.BUNDLE_FILES_MAX:  # before an index is built of them
            raise _too_many()
        try:
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                return cls(_contents(archive))
        except _UNREADABLE as error:
            raise BundleInvalid(
                f"the bundle is no zip that can be read: {str(error) or type(error).__name__}."
            ) from None


def hash_of_files(files: Mapping[str, bytes]) -> str:
    """SHA-256 over sorted paths and contents, each after its length: none poses as another."""
    digest = hashlib.sha256(_MARK)
    for path, content in sorted(files.items()):
        name = path.encode()
        digest.update(b"%d %d\n" % (len(name), len(content)))
        digest.update(name)
        digest.update(content)
    return digest.hexdigest()


def is_code_hash(value: str) -> bool:
    """Whether it has the form of a code hash, and so may be part of a file's name."""
    return _HASH.match(value) is not None


def entry_of(paths: Mapping[str, bytes] | list[str]) -> str:
    """Which file of an app is imported.

    `app.py` or `main.py` at the top; else the only `.py` file there; else the `__init__.py` of
    the only folder there that is a package.

    Raises:
        BundleInvalid: none of these.
    """
    names = list(paths)
    modules = [name for name in names if "/" not in name and name.endswith(".py")]
    for wanted in _ENTRIES:
        if wanted in modules:
            return wanted
    if len(modules) == 1:
        return modules[0]
    packages = [name for name in names if _is_package(name)]
    if not modules and len(packages) == 1:
        return packages[0]
    found = ", ".join(sorted(modules or packages)[:5]) or "no Python file"
    raise BundleInvalid(
        f"which file to import can't be told: at the top there is {found}. Name it app.py or "
        "main.py, or deploy a single file or a single package."
    )


def _is_package(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return rest == "__init__.py" and folder.isidentifier()


def check_files(files: Mapping[str, bytes]) -> None:
    """Refuse what can't be a bundle: names, sizes, no Python at all.

    Raises:
        BundleInvalid
    """
    if len(files) > limits.BUNDLE_FILES_MAX:
        raise _too_many()
    size = sum(map(len, files.values()))
    if size > limits.BUNDLE_UNPACKED_BYTES_MAX:
        raise _too_large()
    taken: dict[str, str] = {}
    for path in files:
        _check_path(path)
        plain = _plain(path)
        if plain in taken:
            raise BundleInvalid(f"{path!r} and {taken[plain]!r} can be the same file; rename one.")
        taken[plain] = path
    for plain, path in taken.items():
        for parent in PurePosixPath(plain).parents:
            if str(parent) in taken:
                raise BundleInvalid(f"{taken[str(parent)]!r} is a file and a folder ({path!r}).")
    entry_of(files)


def _check_path(path: str) -> None:
    parts = path.split("/")
    is_good = (
        0 < len(path) <= limits.BUNDLE_PATH_CHARS_MAX
        and len(parts) <= limits.BUNDLE_DEPTH_MAX
        and all(_SEGMENT.match(part) and part[-1] not in ". " for part in parts)
    )
    try:
        path.encode()
    except UnicodeEncodeError:
        is_good = False
    if not is_good:
        raise BundleInvalid(
            f"{path!r:.300} is no name for a file of a bundle: use a relative path such as "
            "'flows/order.py', without '..', '\\\\', ':' or control characters, of at most "
            f"{limits.BUNDLE_PATH_CHARS_MAX} characters and {limits.BUNDLE_DEPTH_MAX} folders."
        )


def _plain(path: str) -> str:
    """The path as a file system that knows no case would see it."""
    return unicodedata.normalize("NFC", path).casefold()


def _contents(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """The files of a zip, read within the bounds."""
    found: dict[str, bytes] = {}
    left = limits.BUNDLE_UNPACKED_BYTES_MAX
    for info in archive.infolist():
        name = info.orig_filename
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise BundleInvalid(f"{name!r:.300} is a link or a device; a bundle holds files only.")
        if name.endswith("/"):
            _check_path(name[:-1])
            continue
        _check_path(name)
        if name in found:
            raise BundleInvalid(f"{name!r:.300} is in the bundle twice.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BundleInvalid(f"{name!r:.300} is compressed in a way that is not taken.")
        if info.flag_bits & 1:
            raise BundleInvalid(f"{name!r:.300} is encrypted.")
        if info.file_size > left:
            raise _too_large()
        with archive.open(info) as file:
            content = file.read(left + 1)
        left -= len(content)
        if left < 0:
            raise _too_large()
        found[name] = content
    return found


def _too_many() -> BundleInvalid:
    return BundleInvalid(f"the bundle has more than {limits.BUNDLE_FILES_MAX} files.")


def _too_large() -> BundleInvalid:
    return BundleInvalid(
        f"the files of the bundle have more than {limits.BUNDLE_UNPACKED_BYTES_MAX} bytes in all. "
        "Bundles are for code; keep data elsewhere."
    )
