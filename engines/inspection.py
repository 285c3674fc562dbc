"""Finds out what a bundle defines, by importing it in a process of its own.

    python -P -m toque.engines.inspection FOLDER HASH       (the child; run by `inspect_bundle`)

The code is a stranger's until it has been deployed, so the process that asks never imports it.
The child is a warden: it forks the process that imports, takes over whatever that one leaves
behind, in other sessions too, and ends all of it before it ends itself. So code that hangs, or that
starts something and forgets it, leaves nothing. It is no sandbox: who means to can kill the warden,
or read what the server's user can read. What is told is data, and is checked (`check_manifest`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NoReturn

import msgspec

from ..actors.keeper import children
from ..actors.worker import child_environment
from ..runtime import limits
from ..runtime.errors import BundleInvalid, BundleRefused, WorkflowLoadError
from .archive import Bundle
from .bundle import load_unpacked
from .bundle_store import (
    PASSING,
    Manifest,
    check_manifest,
    manifest_of,
    remove_files,
    write_files,
)
from .workflow import check_has_run

_REPORT_BYTES_MAX = limits.MIB
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_FAILED = 3
"""The child's exit code for code that can't be deployed; what it printed says why."""


class Report(msgspec.Struct, frozen=True):
    """What the child tells: the manifest, or why there is none."""

    manifest: Manifest | None = None
    error: str = ""


async def inspect_bundle(
    bundle: Bundle, scratch: Path | None = None, *, timeout_ms: int = limits.BUNDLE_IMPORT_MAX_MS
) -> Manifest:
    """What a bundle defines.

    Args:
        bundle: the code.
        scratch: where to lay it out for a while, under a passing name; None: where all do.
        timeout_ms: how long it may take.

    Raises:
        BundleRefused: its code does not import in time, or defines no workflow; the text says
            why, and holds the end of what it printed.
    """
    folder = await asyncio.to_thread(_passing_folder, scratch)
    try:
        code = folder / "code"
        await asyncio.to_thread(_lay_out, code, bundle)
        return await _ask_child(folder, code, bundle.code_hash, timeout_ms)
    finally:
        await asyncio.shield(asyncio.to_thread(remove_files, folder))


def _passing_folder(scratch: Path | None) -> Path:
    if scratch is not None:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="inspected.", suffix=PASSING, dir=scratch))


def _lay_out(code: Path, bundle: Bundle) -> None:
    code.mkdir()
    write_files(code, bundle.files)


async def _ask_child(folder: Path, code: Path, code_hash: str, timeout_ms: int) -> Manifest:
    told, printed = folder / "told", folder / "printed"
    # read by these descriptors: by those names the code may have put other things, such as pipes
    with told.open("w+b") as out, printed.open("w+b") as err:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", __name__, str(code), code_hash),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=child_environment(os.environ),
            cwd=folder,
            start_new_session=True,  # so that all that it starts can be ended
        )
        is_late = False
        try:
            await asyncio.wait_for(child.wait(), timeout_ms / 1_000)
        except TimeoutError:
            is_late = True
        finally:
            await _end_warden(child)
        said = _end_of(err)
        if is_late:
            raise _refused(f"it did not import within {timeout_ms / 1_000:g} s", said)
        return _told(out, said, child.returncode or 0)


async def _end_warden(child: asyncio.subprocess.Process) -> None:
    """Have it end what it watches, and then itself; by force if it does not."""
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(child.wait(), limits.BUNDLE_END_MAX_MS / 1_000)
    except TimeoutError:
        pass
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


def _told(told: BinaryIO, said: str, code: int) -> Manifest:
    told.seek(0)
    try:
        report = msgspec.json.decode(told.read(_REPORT_BYTES_MAX), type=Report)
    except msgspec.MsgspecError:
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise _refused(f"the process that imports it ended {how}", said) from None
    if report.manifest is None:
        raise _refused(report.error[: limits.BUNDLE_OUTPUT_CHARS_MAX], said)
    try:
        return check_manifest(report.manifest)
    except BundleInvalid as error:
        raise BundleRefused(str(error)) from None


def _refused(why: str, said: str) -> BundleRefused:
    output = f"\nIt printed:\n{said}" if said else ""
    return BundleRefused(f"the bundle can't be deployed: {why.rstrip('.')}.{output}")


def _end_of(printed: BinaryIO) -> str:
    """The last of what was printed."""
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - limits.BUNDLE_OUTPUT_CHARS_MAX))
    return printed.read(limits.BUNDLE_OUTPUT_CHARS_MAX).decode("utf-8", "replace").strip()


# --- the child: the warden ------------------------------------------------------------------


class _Told(BaseException):
    """The warden was told to end, or its starter has ended."""


def main(folder: str, code_hash: str) -> None:
    """Import the bundle in a process of its own, and end as that one did, after all it started."""

    def told(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Told

    status = 0
    try:
        signal.signal(signal.SIGTERM, told)
        _prctl(_SET_CHILD_SUBREAPER, 1)
        _prctl(_SET_PDEATHSIG, signal.SIGTERM)
        importer = os.fork()
        if importer == 0:
            _import_as_child(folder, code_hash)
        status = os.waitpid(importer, 0)[1]
    except _Told:
        status = signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_children()
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _end_children() -> None:
    """Kill children until there are none; those of a child that ends become this process's."""
    while True:
        for pid in children(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


# --- its child: the one that imports --------------------------------------------------------


def _import_as_child(folder: str, code_hash: str) -> NoReturn:
    code = _FAILED
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(_SET_PDEATHSIG, signal.SIGKILL)
        code = _import(folder, code_hash)
    finally:
        os._exit(code)  # threads that the code began are not waited for


def _modules_in(folder: str) -> list[ModuleType]:
    """The modules that were imported from a folder."""
    inside = f"{folder}{os.sep}"
    known = list(sys.modules.values())
    return [each for each in known if str(getattr(each, "__file__", "")).startswith(inside)]


def _import(folder: str, code_hash: str) -> int:
    """Import the bundle and report; gives the exit code."""
    reports = os.dup(1)
    os.dup2(2, 1)  # what the code prints is not the report
    _bound()
    try:
        found = load_unpacked(Path(folder), code_hash)
        if not found:
            for module in _modules_in(folder):
                check_has_run(module)
            raise WorkflowLoadError(
                "it defines no workflow. Write `class Order(WorkflowEntrypoint): async def "
                "run(self, event, step): ...`, or decorate a function with @workflow"
            )
        report, code = Report(manifest_of(found)), 0
    except BaseException as error:  # the code may raise anything
        cause = error.__cause__
        if cause is not None:
            traceback.print_exception(_without_ours(cause, folder))
        report, code = Report(error=str(error).replace(f"{folder}{os.sep}", "")), _FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(reports, msgspec.json.encode(report))
    return code


def _without_ours(error: BaseException, folder: str) -> BaseException:
    """The error with a traceback that begins in the bundle."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(folder):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _bound() -> None:
    seconds = limits.BUNDLE_IMPORT_MAX_MS // 1_000
    memory = limits.BUNDLE_IMPORT_MEMORY_BYTES_MAX
    for what, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, 16 * limits.MIB),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))


if __name__ == "__main__":
    main(*sys.argv[1:3])
