"""What docs/cli.md repeats of the command line: every command, exit code and setting.

Read from the application itself by `docs/tables.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from toque.api import cli_exits
from toque.api.cli import COMMANDS, load
from toque.api.cli_flags import PANEL
from toque.api.settings import SETTINGS

_PLAIN = {"help"}


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command, or those below it, with their whole names."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner, found in command.commands.items():
        yield from commands(f"{name} {inner}", found)


def every_command() -> Iterator[tuple[str, Any]]:
    """All commands, in the order of `toque --help`."""
    for name in COMMANDS:
        yield from commands(name, load(name))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _argument(parameter: Any) -> str:
    word = parameter.metavar or parameter.name.upper()
    word = f"{word}..." if parameter.nargs != 1 else word
    return word if parameter.required else f"[{word}]"


def _shared(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) == PANEL


def _options(command: Any) -> list[Any]:
    return [
        each
        for each in command.params
        if each.param_type_name == "option"
        and each.name not in _PLAIN
        and not getattr(each, "hidden", False)
    ]


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or callable(value) or value in ("", [], ()):
        return ""
    if type(value).__name__ in ("_Unset", "Sentinel", "UNSET"):
        return ""
    return f" Default: {getattr(value, 'value', value)}."


def _words(option: Any) -> str:
    off = [name for name in option.secondary_opts if name.startswith("--no-")]
    names = ", ".join(f"`{name}`" for name in [*reversed(option.opts), *off])
    return names + (", ..." if option.multiple else "")


def _rows(options: list[Any]) -> list[str]:
    rows = ["| option | meaning |", "| --- | --- |"]
    for option in options:
        rows.append(f"| {_words(option)} | {_cell((option.help or '-') + _default(option))} |")
    return rows


def command_rows() -> list[str]:
    """Every command: its usage, what it does, its own options."""
    rows: list[str] = []
    for name, command in every_command():
        usage = " ".join(
            [
                f"toque {name}",
                *(_argument(p) for p in command.params if p.param_type_name != "option"),
            ]
        )
        rows += ["", f"### {name}", "", f"`{usage}`", "", _cell(command.help or "")]
        own = [option for option in _options(command) if not _shared(option)]
        if own:
            rows += ["", *_rows(own)]
    return rows[1:]


def shared_rows() -> list[str]:
    """The options that every command takes."""
    _, command = next(item for item in every_command() if item[0] == "workflows list")
    return _rows([option for option in _options(command) if _shared(option)])


def exit_rows() -> list[str]:
    """The exit codes."""
    rows = ["| code | meaning |", "| --- | --- |"]
    return rows + [f"| {code} | {meaning} |" for code, meaning in cli_exits.MEANINGS.items()]


def setting_rows() -> list[str]:
    """The settings."""
    rows = ["| key | variable | meaning | default |", "| --- | --- | --- | --- |"]
    for name, setting in SETTINGS.items():
        default = f"`{setting.default}`" if setting.default else "-"
        rows.append(f"| `{name}` | `TOQUE_{name.upper()}` | {setting.help} | {default} |")
    return rows


def check_line(line: str) -> str | None:
    """What is wrong with a `toque ...` line of a document; None if it would be understood."""
    words = _split(line)
    if words[:1] not in (["toque"], [".venv/bin/toque"]):
        return f"{line!r} is no command of toque"
    name = next((word for word in words[1:] if not word.startswith("-")), "")
    if name not in COMMANDS:
        return f"there is no command {name!r}"
    command, rest = load(name), words[words.index(name) + 1 :]
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"{command.name} has no command {rest[:1]}"
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_context(name, rest)
    except Exception as error:
        return f"{line}: {getattr(error, 'message', error)}"
    return None


def _split(line: str) -> list[str]:
    """The words of a command of a shell, without its redirections and comments."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words = list(reader)
    return words[: next((n for n, word in enumerate(words) if set(word) <= set("<>&;()")), None)]


def lines_of(block: str) -> list[str]:
    """The commands of toque in a block of shell."""
    lines = block.replace("\\\n", " ").splitlines()
    parts = [
        part.strip() for line in lines for part in re.split(r"\|(?=(?:[^']*'[^']*')*[^']*$)", line)
    ]
    return [part for part in parts if re.match(r"(?:\.venv/bin/)?toque\s", part)]
