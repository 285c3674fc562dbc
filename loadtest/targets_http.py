"""What is put under load: a server, one that is started for it, or a runtime in this process.

A server that is started gets a directory of its own, which is removed with it. Limits that a test
changes are put back when it ends. What is not there (metrics without an operator's token, limits
without an admin's) is told as missing, or refused with what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from ..api.app_http import make_app
from ..api.auth import TokenBook
from ..api.cli_config import DevFile, read_dev_file
from ..api.client import Client
from ..api.client_embedded import EmbeddedBackend
from ..api.client_http import HttpBackend
from ..api.client_port import Backend
from ..api.client_values import CallOptions, WorkflowSummary
from ..api.wiring import DEFAULT_ACCOUNT, NO_RATES, Runtime, start_embedded
from ..engines.bundle_store import read_app
from ..gatekeeper.messages import LimitsChange
from ..runtime import limits
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import Forbidden, InvalidArgument, ToqueError, WorkflowNotFound
from . import app
from .fleet import Access, final_backend
from .result import Target as Shown

APP = Path(app.__file__)
SCRIPT = "toque-loadtest"
_READY_CHECK_S = 0.05
_SCRAPE_MAX_S = 5.0
_LOG_TAIL = 3_000


class Target(NamedTuple):
    """What is put under load, and how it is reached.

    Attributes:
        shown: what the document says of it.
        account: whose workflows.
        client: for what is not measured: it repeats calls.
        final: for what is: each answer is final.
        access: how other processes reach it; None: they can't.
        scrape: the page of its metrics; None: there is none for us.
        data: its data directory, if that is on this machine.
        limit_of: tells a `running_max`, of a workflow or of the account.
        limit: sets a `running_max`, of a workflow or of the account; gives what it was.
        pid: of the server that was started.
    """

    shown: Shown
    account: str
    client: Client
    final: Backend
    access: Access | None
    scrape: Callable[[], Awaitable[bytes | None]]
    data: Path | None
    limit_of: Callable[[str | None], Awaitable[int | None]]
    limit: Callable[[str | None, int | None], Awaitable[int | None]]
    pid: int | None = None


class Fresh(NamedTuple):
    """How a server is started. `shards`: data shards; None: as `toque dev` does."""

    ray: bool
    shards: int | None


@contextlib.asynccontextmanager
async def http_target(
    access: Access, data: Path | None = None, kind: str = "http", pid: int | None = None
) -> AsyncIterator[Target]:
    """A server that is there.

    Args:
        access: how it is reached.
        data: its data directory, if that is on this machine.
        kind, pid: of one that was started for the test.
    """
    headers = {} if access.token is None else {"Authorization": f"Bearer {access.token}"}
    backend = final_backend(access)
    entropy = SystemEntropy()
    client = Client(HttpBackend(access.url, access.token, access.account, entropy), entropy)
    timeout = aiohttp.ClientTimeout(total=_SCRAPE_MAX_S)
    async with client, aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        try:
            yield Target(
                Shown(kind, access.url),
                access.account,
                client,
                backend,
                access,
                lambda: _scraped(session, access.url),
                data,
                lambda workflow: _limit_of(client, workflow),
                lambda workflow, most: _limit(client, workflow, most),
                pid,
            )
        finally:
            await backend.close()


async def _scraped(session: aiohttp.ClientSession, url: str) -> bytes | None:
    """The page of metrics; None: not for us, or not in time."""
    try:
        async with session.get(f"{url}/metrics", allow_redirects=False) as answer:
            return await answer.read() if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


async def _limit_of(client: Client, workflow: str | None) -> int | None:
    if workflow is None:
        return (await client.limits.get()).running_max
    return (await client.limits.get_workflow(workflow)).running_max


async def _limit(client: Client, workflow: str | None, most: int | None) -> int | None:
    try:
        before = await _limit_of(client, workflow)
        if workflow is None:
            await client.limits.set(running_max=most)
        else:
            await client.limits.set_workflow(workflow, running_max=most)
        return before
    except Forbidden:
        raise InvalidArgument(
            "this test sets a limit, which needs a token of scope admin; name one with --token."
        ) from None


@contextlib.asynccontextmanager
async def server_target(fresh: Fresh, connections: int) -> AsyncIterator[Target]:
    """A server of the test's own: started on a fresh directory, ended and removed with it."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="toque-loadtest-"))
    try:
        async with _started(folder, fresh) as (found, pid):
            access = Access(found.url, found.token, found.account, connections)
            async with http_target(access, folder / "data", "server", pid) as target:
                yield target
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def _started(folder: Path, fresh: Fresh) -> AsyncIterator[tuple[DevFile, int]]:
    command = [sys.executable, "-m", "toque.loadtest.served", "dev", str(APP), "--port", "0"]
    command += ["--data", str(folder / "data")]
    command += ["--creates", str(limits.CREATES_PER_SECOND_MAX)]
    command += [] if fresh.ray else ["--embedded"]
    command += [] if fresh.shards is None else ["--shards", str(fresh.shards)]
    log = folder / "server.log"
    with log.open("wb") as noise:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,  # it ends when this closes, should we be killed
            stdout=noise,
            stderr=noise,
            start_new_session=True,  # a Ctrl-C at the terminal is for the test, which then ends it
        )
        try:
            yield await _ready(process, folder / "data", log), process.pid
        finally:
            await _end(process)


async def _ready(process: asyncio.subprocess.Process, data: Path, log: Path) -> DevFile:
    loop = asyncio.get_running_loop()
    until = loop.time() + limits.LOADTEST_START_MAX_MS / 1000
    while (found := read_dev_file(data)) is None:
        if process.returncode is not None or loop.time() > until:
            told = log.read_text(errors="replace")[-_LOG_TAIL:].strip()
            raise ToqueError(
                f"the server for the test did not come up: {told or 'it says nothing'}"
            )
        await asyncio.sleep(_READY_CHECK_S)
    return found


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), limits.LOADTEST_START_MAX_MS / 1000)
    except TimeoutError:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def embedded_target() -> AsyncIterator[Target]:
    """A runtime in this process, on a fresh directory that is removed with it."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="toque-loadtest-"))
    try:
        async with (
            start_embedded(folder / "data", app_path=APP, creates_per_second=NO_RATES) as runtime,
            attached_target(runtime, "embedded", folder / "data") as target,
        ):
            yield target
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def attached_target(
    runtime: Runtime, kind: str = "attached", data: Path | None = None
) -> AsyncIterator[Target]:
    """A runtime that a program has, embedded or on Ray; its app must hold what is to run."""
    account, plane = DEFAULT_ACCOUNT, runtime.control_plane
    backend = EmbeddedBackend(plane, account)
    metrics = make_app(
        plane, tokens=TokenBook({}), version=version("toque"), process=runtime.process
    ).metrics

    async def limit_of(workflow: str | None) -> int | None:
        if workflow is None:
            return (await plane.limits.of_account(account)).running_max
        return (await plane.limits.of_workflow(account, workflow)).record.running_max

    async def limit(workflow: str | None, most: int | None) -> int | None:
        before, change = await limit_of(workflow), LimitsChange(running_max=most)
        if workflow is None:
            await plane.limits.of_account(account, change)
        else:
            await plane.limits.of_workflow(account, workflow, change)
        return before

    yield Target(
        Shown(kind),
        account,
        runtime.client(account),
        backend.with_options(CallOptions(retry_for_s=0)),
        None,
        metrics.page.get,
        data,
        limit_of,
        limit,
    )


async def ensure_workflows(target: Target, wanted: set[str], own: bool = True) -> None:
    """See that the workflows are there; the test's own are deployed where one is missing or old.

    Args:
        target: where.
        wanted: their names.
        own: whether they are the test's own, which have to have its code; else somebody's.

    Raises:
        WorkflowNotFound: one that is not the test's own is missing.
        InvalidArgument: the token may not deploy, or a name is taken by somebody's workflow.
    """
    found = {name: await _found(target, name) for name in sorted(wanted)}
    missing = [name for name, summary in found.items() if summary is None]
    foreign = [name for name in missing if not hasattr(app, name)]
    if foreign:
        raise WorkflowNotFound(
            f"there is no workflow {foreign[0]!r} in account {target.account!r}; deploy it first, "
            "or leave --workflow out: the test has workflows of its own."
        )
    if missing and target.access is None:
        raise WorkflowNotFound(
            f"the runtime has no workflow {missing[0]!r}; start it with the file {APP.name} of "
            "toque.loadtest, or name a workflow of its own."
        )
    there = [summary for summary in found.values() if summary is not None]
    is_old = own and target.access is not None and await _is_old(target, there)
    if not missing and not is_old:
        return
    try:
        await target.client.scripts.deploy(APP, SCRIPT)
    except Forbidden:
        raise InvalidArgument(
            "the test deploys workflows of its own, which needs a token of scope admin; name one "
            "with --token, or a workflow that is there with --workflow."
        ) from None


async def _is_old(target: Target, there: list[WorkflowSummary]) -> bool:
    """Whether the script of the test has other code than this version's; refuses others' names."""
    if not there:
        return False
    ours = (await asyncio.to_thread(read_app, APP)).code_hash
    codes = {each.script: each.code_hash for each in await target.client.scripts.list()}
    other = [each for each in there if codes.get(each.script_name) != ours]
    for each in other:
        if each.script_name != SCRIPT:
            raise InvalidArgument(
                f"workflow {each.name!r} of account {target.account!r} is of script "
                f"{each.script_name!r}, not the load test's, which needs that name. Test it with "
                f"--workflow {each.name}, or use another account."
            )
    return bool(other)


async def _found(target: Target, name: str) -> WorkflowSummary | None:
    """The workflow, if it is there; a server that is not is told soon, since a person waits."""
    try:
        soon = target.client.with_options(retry_for=limits.CLI_RETRY_FOR_MS / 1000)
        return await soon.get_workflow(name)
    except WorkflowNotFound:
        return None


def encoded(params: Any) -> str:
    """Params as JSON."""
    return msgspec.json.encode(params).decode()
