"""Where the command line finds its server: flags, then the environment, then a file.

`toque dev` writes `dev.json` into its data directory, `./.toque/dev` if it is not told otherwise;
other programs keep theirs beside it, under `./.toque`. The file is readable by its owner only;
its token is kept over restarts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..runtime.errors import InvalidArgument
from ..runtime.files import write_atomically

DATA_DEFAULT = Path(".toque/dev")
DEV_FILE = "dev.json"
ACCOUNT_DEFAULT = "default"


class DevFile(msgspec.Struct, frozen=True):
    """What `toque dev` tells other commands."""

    url: str
    token: str
    account: str = ACCOUNT_DEFAULT


class Target(msgspec.Struct, frozen=True):
    """A server and how to be let in."""

    url: str
    token: str | None
    account: str


def read_dev_file(data: Path) -> DevFile | None:
    """What a `toque dev` left in its data directory, if anything readable."""
    try:
        return msgspec.json.decode((data / DEV_FILE).read_bytes(), type=DevFile)
    except (OSError, msgspec.MsgspecError):
        return None


def write_dev_file(data: Path, found: DevFile) -> Path:
    """Write the file, for its owner's eyes only."""
    path = data / DEV_FILE
    write_atomically(path, msgspec.json.format(msgspec.json.encode(found)) + b"\n", mode=0o600)
    return path


def target(
    url: str | None, token: str | None, account: str | None, data: Path = DATA_DEFAULT
) -> Target:
    """The server to call. Flags and environment come in as arguments (the CLI reads both).

    The token of the dev file is used only with the dev file's own url.
    """
    dev = read_dev_file(data)
    if url is None:
        if dev is None:
            raise InvalidArgument(
                f"no 'toque dev' has served {data}: start one with 'toque dev APP.py', name its "
                "directory with 'toque --data DIR ...', or set TOQUE_URL and TOQUE_TOKEN."
            )
        url = dev.url
    if token is None and dev is not None and dev.url == url:
        token = dev.token
        account = account or dev.account
    return Target(url, token, account or ACCOUNT_DEFAULT)
