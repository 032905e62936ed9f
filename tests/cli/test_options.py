"""Checks that flags agree with the fields of a settings record."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import typer
from typer.testing import CliRunner

from hopstream.cli.options import flag_name, with_settings
from hopstream.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Settings:
    num_parts: int = field(default=3, metadata={"help": "how many"})
    method: Literal["a", "b"] = field(default="a", metadata={"help": "which way"})
    keep_keys: bool = field(default=True, metadata={"help": "keep them"})
    is_hidden: int = 7
    folder: Path | None = field(default=None, metadata={"help": "where"})
    loud: bool = field(default=False, metadata={"help": "say more"})
    names: tuple[str, ...] = field(default=(), metadata={"help": "which ones"})
    most_bytes: int = field(default=1, metadata={"help": "how large"})


@with_settings("settings", Settings)
def verb(name: str, *, settings: Settings) -> None:
    typer.echo(f"{name} {settings}")


def run(*arguments: str) -> str:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(verb)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_defaults_are_the_fields():
    assert run("x") == f"x {Settings()}"


def test_every_field_with_help_has_a_flag():
    given = run(
        "x",
        "--parts",
        "5",
        "--method",
        "b",
        "--no-keep-keys",
        "--folder",
        "f",
        "--loud",
        "--names",
        "x",
        "--names",
        "y",
    )
    wanted = Settings(num_parts=5, method="b", keep_keys=False, folder=Path("f"), loud=True, names=("x", "y"))
    assert given == f"x {wanted}"


def test_sizes_have_units():
    assert run("x", "--most-bytes", "2MiB") == f"x {Settings(most_bytes=2 << 20)}"
    assert run("x", "--most-bytes", "17") == f"x {Settings(most_bytes=17)}"
    with pytest.raises(SettingsError, match="--most-bytes is '2 feet'; it must be a size such as 500MB or 4GiB"):
        verb(name="x", **{**vars(Settings()), "most_bytes": "2 feet"})


def test_help_is_the_fields_help():
    shown = " ".join(run("--help").split())
    assert "--parts <int> how many [default: 3]" in shown or "--parts INTEGER how many [default: 3]" in shown
    assert "--method a|b which way [default: a]" in shown
    assert "hidden" not in shown and "--no-loud" not in shown


def test_flags_have_the_names_of_settings_with_hyphens():
    assert [flag_name(n) for n in ("num_parts", "rng_seed", "imbalance")] == ["--parts", "--rng-seed", "--imbalance"]


def test_a_field_without_default_is_a_mistake():
    @dataclass
    class Bad:
        x: int = field(metadata={"help": "no default"})

    with pytest.raises(TypeError, match="'x' has no default"):
        with_settings("bad", Bad)
