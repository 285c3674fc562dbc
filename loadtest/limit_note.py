"""What a running limit was before a test changed it, kept on disk until it is that again.

A test that is killed can't put a limit back. Its note stays, and the next test on that server does
it first. A note belongs to a test for as long as that holds a lock, which ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ..runtime.errors import InvalidArgument
from ..runtime.files import write_atomically


class Note(msgspec.Struct, frozen=True):
    """A limit as it was. `workflow`: whose; None: the account's. `set_to`: what a test made it."""

    url: str
    account: str
    workflow: str | None
    set_to: int
    before: int | None = None

    @property
    def name(self) -> str:
        """The same for the same limit, and fit for a file."""
        words = msgspec.json.encode([_server_of(self.url), self.account, self.workflow])
        return hashlib.sha256(words).hexdigest()[:32]

    @property
    def whose(self) -> str:
        """For people."""
        return f"account {self.account}" if self.workflow is None else self.workflow


def notes_folder() -> Path:
    """Where they are: in the person's own folder for what programs keep."""
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state or Path.home() / ".local" / "state") / "toque" / "loadtest"


@contextmanager
def claimed(note: Note) -> Iterator[Path]:
    """Have a note for oneself; gives its file, which need not be there.

    Raises:
        InvalidArgument: another test has it, or there is no place for it.
    """
    folder = notes_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / f"{note.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InvalidArgument(
            f"the limit that the test is to put back can't be noted in {folder}: "
            f"{error.strerror}. Name another folder with XDG_STATE_HOME."
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(
                f"another load test has set the running limit of {note.whose} on {note.url}; "
                "wait until it is over."
            ) from None
        yield folder / f"{note.name}.json"
    finally:
        os.close(lock)


def keep(note: Note, file: Path) -> None:
    """Write it, whole or not at all."""
    try:
        write_atomically(file, msgspec.json.encode(note))
    except OSError as error:
        raise InvalidArgument(
            f"the limit that the test is to put back can't be noted: {file}: {error.strerror}."
        ) from None


def left_on(url: str, account: str) -> list[Note]:
    """The notes of an account of a server, whoever's; unreadable files are none."""
    found = []
    for file in sorted(notes_folder().glob("*.json")):
        note = read(file)
        if note is not None and (_server_of(note.url), note.account) == (_server_of(url), account):
            found.append(note)
    return found


def _server_of(url: str) -> tuple[str, int | None]:
    """Host and port, alike for all names that this machine has for itself."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            host = "localhost"
    return host, parts.port or (443 if parts.scheme == "https" else 80)


def read(file: Path) -> Note | None:
    """The note in a file, if there is one."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError):
        return None
