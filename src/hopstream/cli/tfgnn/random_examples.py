"""Verb ``tfgnn random``: writes random examples that fit a schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output
from hopstream.cli.tfgnn.files import PrefixOption, read_spec
from hopstream.cli.units import bytes_text, plural_text
from hopstream.errors import SettingsError
from hopstream.tfgnn.random_settings import RandomSettings
from hopstream.uris import local_path


@with_settings("settings", RandomSettings)
def run(  # noqa: PLR0913, PLR0917  one parameter for each flag that is no field of a record
    schema: Annotated[
        Path, typer.Argument(help="a GraphSchema, or the folder that holds it", metavar="SCHEMA", show_default=False)
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out", help="the TFRecord file to write, or several: name@8, name-?????-of-00008", show_default=False
        ),
    ],
    examples: Annotated[int, typer.Option("--examples", help="number of examples to write", min=1)] = 10,
    rng_seed: Annotated[int, typer.Option("--rng-seed", help="seed of every random choice", min=0)] = 0,
    gzip: Annotated[bool, typer.Option("--gzip", help="compress each file as a whole")] = False,
    prefix: PrefixOption = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace files that are already there")] = False,
    json: JsonFlag = False,
    *,
    settings: RandomSettings,
) -> None:
    """Write random examples that fit a schema; equal settings give equal files."""
    from hopstream.arrays import written_whole
    from hopstream.tfgnn.graph_generator import random_graphs
    from hopstream.tfgnn.graph_tensor import encode_graphs
    from hopstream.tfgnn.tfrecord import RecordWriter, output_name, shard_paths

    output, clock = Output(is_json=json), Clock()
    local_path(out)
    spec = read_spec(schema)[1]
    stem, num_shards = output_name(out)
    paths = [Path(stem)] if num_shards is None else shard_paths(Path(stem), num_shards)
    _make_room(paths, overwrite=overwrite)
    num_bytes = 0
    for shard, path in enumerate(paths):
        with written_whole(path) as partial, RecordWriter(partial, is_compressed=gzip) as writer:
            for number in range(examples * shard // len(paths), examples * (shard + 1) // len(paths)):
                graph = random_graphs(spec, [number], rng_seed=rng_seed, settings=settings)
                writer.write(encode_graphs(graph, prefix=prefix)[0])
        num_bytes += path.stat().st_size
    text = f"{plural_text(examples, 'example')} in {plural_text(len(paths), 'file')}, {bytes_text(num_bytes)}"
    facts: Facts = {"examples": examples, "files": len(paths), "bytes": num_bytes, "out": out}
    output.stage("write", "random", text, facts, clock.cost())


def _make_room(paths: list[Path], *, overwrite: bool) -> None:
    """Check that files may be written, and create their folder.

    Raises:
        SettingsError: A file exists and may not be replaced, or the folder cannot be created.
    """
    there = [path for path in paths if path.exists()]
    if there and (not overwrite or there[0].is_dir()):
        kind = "is a folder; name a file" if there[0].is_dir() else "exists already; give --overwrite to replace it"
        raise SettingsError(f"{there[0]} {kind}")
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{paths[0].parent} cannot be made: {error.strerror}") from error
