"""Options that every command takes, declared once: which server, as whom, and how to print.

They may stand before the command (`toque -o json workflows list`) or after it; after wins. A
command is a function whose first parameter is the `Flags`; `flags_command` gives it the options,
and turns errors into one sentence and an exit code. Options that several commands share are the
fields of a dataclass, which such a command takes as one parameter.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from ..runtime.errors import ToqueError
from .cli_config import Sources, find_settings
from .cli_exits import INTERRUPTED, print_error

Function = TypeVar("Function", bound=Callable[..., Any])
PANEL = "Server and output"


class Output(StrEnum):
    """How a command prints what it found."""

    TABLE = "table"
    JSON = "json"
    IDS = "ids"


class MadeOn(StrEnum):
    """A control plane that an account can be made on."""

    V1 = "v1"
    V2 = "v2"


NoDashboard = Annotated[
    bool, typer.Option("--no-dashboard", help="Do not serve the page for operators.")
]


@dataclasses.dataclass(frozen=True, slots=True)
class Flags:
    """The shared options as they were given; None: not given."""

    url: str | None = None
    token: str | None = None
    account: str | None = None
    profile: str | None = None
    data: Path | None = None
    output: Output | None = None

    def over(self, below: Flags) -> Flags:
        """These, and where one is not given, that of `below`."""
        names = [field.name for field in dataclasses.fields(self)]
        mine = {name: getattr(self, name) for name in names}
        return Flags(**{n: getattr(below, n) if v is None else v for n, v in mine.items()})

    @property
    def as_json(self) -> bool:
        """Whether answers and errors are JSON."""
        if self.output is not None:
            return self.output is Output.JSON
        try:
            return self.settled().value("output") == Output.JSON
        except ToqueError:  # that the settings are wrong is told by who needs them
            return False

    def settled(self) -> Sources:
        """All settings, with these flags over them."""
        return find_settings(dataclasses.asdict(self))


class Command(TyperCommand):
    """A command whose usage shows its arguments plainly: `APP.py`, not `{APP.py}`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line after the command's name."""
        return [_BRACES.sub(r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]


_BRACES = re.compile(r"^\{(.+)\}(\.\.\.)?$")


def new_app(help: str | None = None) -> typer.Typer:
    """A group of commands; without help, what holds a single command."""
    return typer.Typer(help=help, no_args_is_help=help is not None, add_completion=False)


def _shared(
    *,
    url: Annotated[str | None, typer.Option(help="Server.", rich_help_panel=PANEL)] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token.", rich_help_panel=PANEL)] = None,
    account: Annotated[str | None, typer.Option(help="Account.", rich_help_panel=PANEL)] = None,
    profile: Annotated[
        str | None, typer.Option(help="Profile of your settings.", rich_help_panel=PANEL)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Data directory of 'toque dev'.", rich_help_panel=PANEL),
    ] = None,
    output: Annotated[
        Output | None, typer.Option("--output", "-o", help="How to print.", rich_help_panel=PANEL)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As '-o json'.", hidden=True)] = False,
) -> Flags:
    if as_json:
        output = Output.JSON
    return Flags(url, token, account, profile, data, output)


_SHARED = inspect.signature(_shared, eval_str=True).parameters


def given_flags(context: typer.Context, options: dict[str, Any]) -> Flags:
    """The flags of a command: its own options, taken out of `options`, over those before it."""
    own = _shared(**{name: options.pop(name) for name in _SHARED if name in options})
    above = context.find_root().obj
    return own.over(above) if isinstance(above, Flags) else own


def _seen(function: Callable[..., Any], left_out: tuple[str, ...]) -> inspect.Signature:
    """The signature that typer sees: the context, the function's own options, the shared ones."""
    kind = inspect.Parameter.KEYWORD_ONLY
    own: list[inspect.Parameter] = []
    for each in _own_of(function):
        if isinstance(each.annotation, type) and dataclasses.is_dataclass(each.annotation):
            own += inspect.signature(each.annotation, eval_str=True).parameters.values()
        else:
            own.append(each)
    own = [each.replace(kind=kind) for each in own]
    context = inspect.Parameter("context", kind, annotation=typer.Context)
    taken = {*left_out, *(each.name for each in own)}
    shared = [each for name, each in _SHARED.items() if name not in taken]
    return inspect.Signature([context, *own, *shared])


def _own_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a command but the first, their types resolved."""
    hints = typing.get_type_hints(function, include_extras=True)
    _, *parameters = inspect.signature(function).parameters.values()
    return [
        each.replace(annotation=hints[each.name])
        for each in parameters
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def _grouped(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options; those of a group (a dataclass) as one."""
    found = dict(options)
    for each in _own_of(function):
        if dataclasses.is_dataclass(each.annotation):
            names = [field.name for field in dataclasses.fields(each.annotation)]
            made: Any = each.annotation
            found[each.name] = made(**{name: found.pop(name) for name in names})
    return found


def flags_command(
    app: typer.Typer,
    name: str | None = None,
    *,
    own: Callable[..., Any] | None = None,
    left_out: tuple[str, ...] = (),
    **more: Any,
) -> Callable[[Function], Function]:
    """Register a function as a command; its first parameter gets the `Flags`.

    Args:
        app: whose command it is.
        name: its name, if not the function's.
        own: the function whose parameters, but the first, are the command's own; None: itself.
        left_out: shared options that make no sense for it.
        more: for `typer.Typer.command`.
    """

    def register(function: Function) -> Function:
        def command(context: typer.Context, **options: Any) -> None:
            flags = given_flags(context, options)
            given = _grouped(own or function, options)
            with_exit_code(lambda: function(flags, **given), flags)

        signature = _seen(own or function, left_out)
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {n: p.annotation for n, p in signature.parameters.items()}
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        app.command(name, **{"cls": Command, **more})(command)
        return function

    return register


def flags_callback(app: typer.Typer) -> Callable[[Function], Function]:
    """Register what runs before every command; it gets the shared options as keywords."""

    def register(function: Function) -> Function:
        def callback(**options: Any) -> None:
            function(**options)

        signature = _seen(function, ())
        callback.__signature__ = signature  # type: ignore[attr-defined]
        callback.__annotations__ = {n: p.annotation for n, p in signature.parameters.items()}
        callback.__doc__ = function.__doc__
        app.callback()(callback)
        return function

    return register


def with_exit_code(work: Callable[[], Any], flags: Flags) -> None:
    """Do the work; errors become one sentence on stderr and an exit code."""
    try:
        work()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (ToqueError, TimeoutError) as error:
        raise typer.Exit(print_error(error, as_json=flags.as_json)) from None
