"""Verb ``place``: spreads a dataset over several roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.serve import parts_text
from hopstream.cli.units import bytes_text, plural_text
from hopstream.engine.settings import WorkerSettings
from hopstream.errors import SettingsError

if TYPE_CHECKING:
    from hopstream.dataset.copying.placing import RootList
    from hopstream.dataset.manifest import Manifest
    from hopstream.dataset.paths import Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSettings:
    """Roots for the parts of a dataset, and the machines that serve them.

    Raises:
        SettingsError: Roots are given in two ways, or a flag needs roots or machines and there are none.
    """

    root: tuple[str, ...] = field(
        default=(),
        metadata={"help": "a root for parts: a folder, or a URI such as s3://bucket/mag; part i goes to root i mod R"},
    )
    roots: Path | None = field(
        default=None, metadata={"help": "instead of --root, a file with a line 'URI [parts]' for each place"}
    )
    move: bool = field(
        default=False, metadata={"help": "remove each file from the dataset's own folder after it is copied"}
    )
    ip_config: Path | None = field(
        default=None,
        metadata={"help": "a file with a line 'ip [port] [num_servers]' per machine; cluster.json is written from it"},
    )
    tls: bool = field(default=False, metadata={"help": "servers of --ip-config use TLS"})

    def __post_init__(self) -> None:
        """Check combinations of fields."""
        if self.root and self.roots is not None:
            raise SettingsError("--root and --roots are both given; list all roots in the file, or none")
        if self.move and not self.has_roots:
            raise SettingsError("--move needs places to move parts to; give --root or --roots")
        if self.tls and self.ip_config is None:
            raise SettingsError(
                "--tls is for the servers of --ip-config, which is not given; give it, or leave --tls out"
            )

    @property
    def has_roots(self) -> bool:
        """Whether roots are given."""
        return bool(self.root) or self.roots is not None

    @property
    def is_on(self) -> bool:
        """Whether roots or machines are given."""
        return self.has_roots or self.ip_config is not None

    def listed(self) -> Sequence[tuple[str, str | None]]:
        """List the roots, each with the text of its parts or None."""
        from hopstream.dataset.copying.placing import read_root_list

        return [(uri, None) for uri in self.root] if self.roots is None else read_root_list(self.roots)

    def check(self) -> None:
        """Read the files and open the roots, so that errors are found before long work.

        Raises:
            FormatError: A file cannot be read.
            SettingsError: A root cannot be opened.
        """
        from hopstream.places.place import Place
        from hopstream.store.ip_config import read_ip_config

        for uri, _ in self.listed():
            Place(uri)
        if self.ip_config is not None:
            read_ip_config(self.ip_config)

    def check_for(self, out: Path, num_parts: int, inputs: Mapping[str, Path]) -> None:
        """Check the roots for a dataset before it is written.

        Args:
            out: Folder of the future dataset.
            num_parts: Number of its parts.
            inputs: Description of each input to its path.

        Raises:
            SettingsError: A root overlaps an input, ``out`` or another root, or holds foreign files; or the number of
                roots does not fit the parts or the machines.
        """
        from hopstream.dataset.copying.targets import check_apart as check_roots_apart
        from hopstream.dataset.copying.targets import check_foreign
        from hopstream.ingest.source_paths import check_apart
        from hopstream.places.place import Place
        from hopstream.store.ip_config import read_ip_config

        if self.has_roots:
            uris = list(map(str, self.root_list(num_parts)))
            places = [Place(uri) for uri in uris]
            if len(places) > num_parts:
                raise SettingsError(
                    f"{len(places)} roots are given for {num_parts} parts; each root needs at least one part"
                )
            check_roots_apart(Place(str(out)), places)
            for place in places:
                if place.local is not None:
                    check_apart(place.local, inputs, "root")
                check_foreign(place)
            num_machines = len(places) if self.ip_config is None else len(read_ip_config(self.ip_config))
            if len(places) not in (1, num_machines):
                raise SettingsError(
                    f"--ip-config has {num_machines} machines for {len(places)} roots; give one root that all machines "
                    "see, or one per machine"
                )

    def root_list(self, num_parts: int) -> RootList:
        """Return the roots in the form that ``place`` takes."""
        from hopstream.dataset.copying.placing import roots_of_list

        return roots_of_list(self.listed(), num_parts)


@with_settings("where", RootSettings)
@with_settings("settings", WorkerSettings)
def run(
    dataset: Annotated[Path, typer.Argument(help="a dataset's folder", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace other datasets in the roots")] = False,
    json: JsonFlag = False,
    *,
    where: RootSettings,
    settings: WorkerSettings,
) -> None:
    """Spread a dataset over several roots, such as one per machine.

    The same command resumes interrupted work.
    """
    from hopstream.dataset.manifest import read_manifest

    if not where.is_on:
        raise SettingsError("there is nothing to do; give --root, --roots or --ip-config")
    place_parts(Output(is_json=json), dataset, read_manifest(dataset), where, settings, overwrite=overwrite)


def place_parts(
    output: Output, dataset: Path, manifest: Manifest, where: RootSettings, settings: WorkerSettings, *,
    overwrite: bool,
) -> None:  # fmt: skip
    """Place a dataset, and show the result."""
    from hopstream.transfer.place import place

    clock = Clock()
    with progress_bars() as progress:
        found = place(
            dataset, where.root_list(manifest.book.num_parts), move=where.move, ip_config=where.ip_config,
            has_tls=where.tls, overwrite=overwrite, settings=settings, progress=progress,
        )  # fmt: skip
    _show(output, dataset, manifest, where, found, clock)


def _show(output: Output, dataset: Path, manifest: Manifest, where: RootSettings, found: Roots, clock: Clock) -> None:
    num_parts = manifest.book.num_parts
    for entry in found.entries:
        num_bytes = sum(manifest.report.bytes[part] for part in entry.parts)
        text = f"{parts_text(entry.parts, num_parts)}, {bytes_text(num_bytes)}"
        facts: Facts = {"root": entry.uri, "parts": entry.parts, "bytes": num_bytes}
        output.stage("root", entry.uri, f" {text}", facts)
    moved = ", moved" if where.move else ""
    machines = "; cluster.json" if where.ip_config is not None else ""
    text = f"{plural_text(num_parts, 'part')} in {plural_text(max(1, len(found.entries)), 'root')}{moved}{machines}"
    told: Facts = {
        "dataset": str(dataset), "dataset_id": manifest.dataset_id, "roots": len(found.entries), "moved": where.move,
        "has_cluster": where.ip_config is not None,
    }  # fmt: skip
    output.stage("done", "place", text, told, clock.cost())
