"""Makes flags of a settings record.

A flag's name, default and help are the field's, so a setting is described once, where it is checked. Values are checked
by the record itself; only numbers are read here.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from hopstream.engine.settings import MEMORY_HELP, read_bytes
from hopstream.errors import SettingsError

Settings = TypeVar("Settings")

PANELS = {
    "BoundedFlags": "Bounded memory", "ClientAccess": "Access to servers", "LogSettings": "Logs",
    "NewHaloFlags": "Copies of other parts' rows", "PartitionSettings": "Cutting", "RootSettings": "Places of parts",
    "SamplingLimits": "Limits of sampling", "SamplingSource": "Sampling for trainers", "ServerAccess": "Access",
    "SourceSettings": "Reading the source", "TableFlags": "Reading tables", "WatchSettings": "Metrics",
    "WorkSettings": "Memory and workers",
}  # fmt: skip
"""Name of a record to the heading that its flags have in help; flags of other records are the verb's own options."""

MemoryFlag = Annotated[str | None, typer.Option("--memory", help=MEMORY_HELP)]
JsonFlag = Annotated[bool, typer.Option("--json", help="write one JSON object per line")]
OutFolder = Annotated[Path, typer.Option("--out", help="the folder to write the dataset to", show_default=False)]
OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="replace a dataset that is already there")]


def flag_name(field_name: str) -> str:
    """The flag of a field: ``--rng-seed``; a count of things is the things' name: ``num_parts`` becomes ``--parts``."""
    return "--" + field_name.removeprefix("num_").replace("_", "-")


def with_settings(
    parameter: str, record: type[Settings], *, required: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace one parameter of a verb by one flag for each field of a settings record.

    Args:
        parameter: Name of the keyword parameter that takes the record.
        record: A dataclass whose fields have a default and ``metadata["help"]``.
        required: Fields whose default is none of the verb's: the flag must be given.
    """
    hints = get_type_hints(record)
    own = vars(record)["__annotations__"]
    in_order = sorted(fields(record), key=lambda one: one.name not in own)  # type: ignore[arg-type]
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.name in required else _default(field),
            annotation=_annotation(field, hints[field.name], PANELS.get(record.__name__)),
        )
        for field in in_order
        if field.init and "help" in field.metadata
    ]
    names = {option.name for option in options}

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(verb, eval_str=True)
        of_verb = [p for p in signature.parameters.values() if p.name != parameter]

        @functools.wraps(verb)
        def run(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in names}
            values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
            try:
                sizes = {n: read_bytes(n, v) for n, v in values.items() if n.endswith("_bytes") and v is not None}
                settings = record(**{**values, **sizes})
            except SettingsError as error:
                raise SettingsError(_in_flags(str(error), names)) from error
            verb(**arguments, **{parameter: settings})

        run.__signature__ = signature.replace(parameters=[*of_verb, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (*of_verb, *options)}
        return run

    return decorate


def _in_flags(message: str, names: set[str]) -> str:
    """A message about a record, with flags in place of the fields that it says something of: ``grace_s is -1``."""
    pattern = rf"(?<!-)\b({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?= is |, | [-\d])"
    return re.sub(pattern, lambda found: flag_name(found[1]), message)


def _default(field: Field[Any]) -> object:
    if field.default is MISSING:
        raise TypeError(f"setting {field.name!r} has no default")
    return field.default


def _annotation(field: Field[Any], hint: Any, panel: str | None) -> Any:
    """What typer makes a flag of. A choice is read as a string, for the record to check."""
    flag = flag_name(field.name)
    option = functools.partial(typer.Option, rich_help_panel=panel)
    text = field.metadata["help"]
    if get_origin(hint) is Literal:
        return Annotated[str, option(flag, help=text, metavar="|".join(get_args(hint)))]
    if hint is bool:
        return Annotated[bool, option(f"{flag}/--no-{flag[2:]}" if field.default else flag, help=text)]
    if field.name.endswith("_bytes"):
        return Annotated[str | None, option(flag, help=text, metavar="SIZE")]
    if get_origin(hint) is tuple:
        is_float = get_args(hint)[0] is float
        several = option(flag, help=f"{text}; may be given several times", metavar="NUMBER" if is_float else "NAME")
        return Annotated[list[float] if is_float else list[str], several]
    return Annotated[hint, option(flag, *field.metadata.get("aliases", ()), help=text)]
