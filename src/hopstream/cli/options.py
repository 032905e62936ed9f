"""Builds command-line flags from settings records.

Name, default and help text of a flag come from the field of the record, so a setting is declared only once. The record
checks the values; this module only parses numbers.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, Field, fields
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
"""Name of a record to the heading of its flags in help; flags of other records are under "Options"."""

MemoryFlag = Annotated[str | None, typer.Option("--memory", help=MEMORY_HELP)]
JsonFlag = Annotated[bool, typer.Option("--json", help="write one JSON object per line")]
OutFolder = Annotated[str, typer.Option("--out", help="the folder or URI to write the dataset to", show_default=False)]
OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="replace a dataset that is already there")]
IdsFlag = Annotated[
    list[str],
    typer.Option(
        "--ids", help="node type, and its feature with raw ids; may be given several times", metavar="TYPE=FEATURE"
    ),
]


def by_type(flag: str, values: Iterable[str]) -> dict[str, str]:
    """Split the values ``TYPE=VALUE`` of a repeated flag.

    Raises:
        SettingsError: A value lacks one of the two, or a type is given twice.
    """
    found: dict[str, str] = {}
    for value in values:
        name, _, of_type = value.partition("=")
        if not name or not of_type or name in found:
            problem = "its type twice" if name in found else "no TYPE=VALUE"
            raise SettingsError(f"{flag} is {value!r}, {problem}; give each type once, as in {flag} user=…")
        found[name] = of_type
    return found


def flag_name(field_name: str) -> str:
    """Return the flag of a field: ``--rng-seed`` for ``rng_seed``, ``--parts`` for ``num_parts``."""
    return "--" + field_name.removeprefix("num_").replace("_", "-")


def with_settings(
    parameter: str, record: type[Settings], *, required: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace one parameter of a verb by one flag for each field of a settings record.

    Args:
        parameter: Name of the keyword parameter that takes the record.
        record: A dataclass whose fields have a default and ``metadata["help"]``.
        required: Fields whose flags must be given, although the record has a default.
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
    """Replace names of fields in a message by flags where they are the subject, as in ``grace_s is -1``."""
    pattern = rf"(?<!-)\b({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?= is |, | [-\d])"
    return re.sub(pattern, lambda found: flag_name(found[1]), message)


def _default(field: Field[Any]) -> object:
    if field.default is MISSING:
        raise TypeError(f"setting {field.name!r} has no default")
    return field.default


def _annotation(field: Field[Any], hint: Any, panel: str | None) -> Any:
    """Return the annotation from which typer makes a flag. Choices are strings, which the record checks."""
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
