"""The command line's front: which commands there are, and where each is.

A command's module is imported only when that command runs, so `toque --help` is quick; the help
of the others is one sentence in the table below (a test holds that it is theirs). Exit codes:
`cli_exits`. Shared options: `cli_flags`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import distribution, version
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from . import cli_exits
from .cli_flags import flags_callback, given_flags

ABOVE = "toque.commands"
"""The group of entry points (pyproject) of commands that live on a floor above this one."""


class Entry(NamedTuple):
    """A command: the module with its `app`, the sentence of its help, and its name in that app.

    The module is ABOVE for one that is found by its entry point.
    """

    module: str
    help: str
    inner: str | None = None


COMMANDS = {
    "dev": Entry(".cli_dev", "Serve the workflows of a file on this machine."),
    "doctor": Entry(".cli_doctor", "Find what is wrong with a data directory or a server."),
    "formats": Entry(
        ".cli_formats", "Show the formats that this version knows, and those of a directory."
    ),
    "up": Entry(".cli_up", "Serve workflows and accounts in production."),
    "deploy": Entry(".cli_deploy", "Deploy the workflows of a file or a folder."),
    "create": Entry(
        ".cli_instances", "Create an instance; with --wait, exit code 1 if it fails.", "create"
    ),
    "instances": Entry(".cli_instances", "Look at instances and act on them."),
    "workflows": Entry(".cli_workflows", "Look at workflows."),
    "events": Entry(".cli_events", "Show what happens to instances."),
    "accounts": Entry(".cli_accounts", "Make and list accounts."),
    "tokens": Entry(".cli_tokens", "Make, list and revoke tokens."),
    "limits": Entry(".cli_limits", "Show and change limits."),
    "migrate": Entry(".cli_migrate", "Move accounts from V1 to V2."),
    "loadtest": Entry(ABOVE, "Put a control plane under load and measure it."),
    "whoami": Entry(".cli_whoami", "Show the account, scope and name of your token."),
    "config": Entry(".cli_settings", "Show settings and where they come from; change your own."),
}


class LazyGroup(TyperGroup):
    """The root: its commands are loaded when they are called, and shown from the table before."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called, loaded."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """A command, with its module."""
    entry = COMMANDS[name]
    app = _above(name) if entry.module == ABOVE else import_module(entry.module, __package__).app
    found: Any = typer.main.get_command(app)
    found = found if entry.inner is None else found.commands[entry.inner]
    found.name = name
    return found


def _above(name: str) -> Any:
    """The app of a command that lives above."""
    for point in distribution("toque").entry_points.select(group=ABOVE, name=name):
        return point.load()
    raise SystemExit(
        f"toque: this installation is older than the command {name!r}; install it again: "
        "pip install -e ."
    )


app = typer.Typer(
    name="toque",
    cls=LazyGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@flags_callback(app)
def _main(
    context: typer.Context,
    shown: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version.")
    ] = False,
    **options: Any,
) -> None:
    """Durable workflows and their control plane."""
    if shown:
        print(f"toque {version('toque')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(cli_exits.USAGE)
    context.obj = given_flags(context, options)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
