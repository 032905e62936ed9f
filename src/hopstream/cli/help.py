"""Write help with verbs and options in groups, each under a heading of its own.

Typer groups by ``rich_help_panel`` too, but draws a frame around each group, which leaves the help of options a column
of 16 characters on a terminal of 80.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

LONGEST = 200
"""Characters of a verb's first sentence that are shown; lines are wrapped, so no sentence has to be cut."""


class GroupedOptions(TyperCommand):
    """A verb whose options are listed by their panel; those without one come first, and ``--help`` last of these."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for the arguments, and one for each panel of options."""
        shown = [(one, one.get_help_record(ctx)) for one in self.get_params(ctx)]
        _write_groups(
            formatter,
            [
                ("Arguments" if one.param_type_name == "argument" else getattr(one, "rich_help_panel", None), record)
                for one, record in shown
                if record is not None
            ],
            "Options",
        )


class GroupedVerbs(TyperGroup):
    """Verbs that are listed by their panel."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel of verbs."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        verbs = [(name, self.get_command(ctx, name)) for name in names]
        _write_groups(
            formatter,
            [
                (getattr(verb, "rich_help_panel", None), (f"{name:<{width}}", verb.get_short_help_str(LONGEST)))
                for name, verb in verbs
                if verb is not None
            ],
            "Commands",
        )


def _write_groups(formatter: Any, rows: Iterable[tuple[str | None, tuple[str, str]]], without_panel: str) -> None:
    """Write one section per panel, in the order in which panels are first named."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for panel, row in rows:
        panels.setdefault(panel or without_panel, []).append(row)
    for panel, found in panels.items():
        with formatter.section(panel):
            formatter.write_dl(found)
