"""Verb ``dispatch``: writes a chunked graph as a dataset, given the part of each node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.halo import NewHaloFlags, show_halo
from hopstream.cli.options import JsonFlag, OverwriteFlag, with_settings
from hopstream.cli.place import RootSettings, place_parts
from hopstream.cli.progress import Clock, Output, progress_bars
from hopstream.cli.units import plural_text
from hopstream.cli.written import show_dataset_plan, show_measured, show_written
from hopstream.engine.settings import WorkerSettings
from hopstream.errors import FormatError, SettingsError
from hopstream.preparation.dispatch.settings import DispatchSettings

if TYPE_CHECKING:
    from hopstream.preparation.dataset_job import DatasetEstimate
    from hopstream.preparation.dataset_job_folder import DatasetJobSpec


@with_settings("where", RootSettings)
@with_settings("halo", NewHaloFlags)
@with_settings("settings", DispatchSettings)
def run(  # noqa: PLR0913, PLR0917  one parameter for each flag that is no field of a record
    in_dir: Annotated[
        Path, typer.Option("--in-dir", help="folder of the chunked graph, with its metadata.json", show_default=False)
    ],
    partitions_dir: Annotated[
        Path,
        typer.Option(
            "--partitions-dir", help="folder with <node type>.npy or .txt, the part of each node", show_default=False
        ),
    ],
    out_dir: Annotated[Path, typer.Option("--out-dir", help="the folder to write the dataset to", show_default=False)],
    metadata_filename: Annotated[str, typer.Option(help="the graph's metadata, in --in-dir")] = "metadata.json",
    save_orig_nids: Annotated[
        bool, typer.Option("--save-orig-nids", help="keep the keys of nodes; a dataset always does")
    ] = False,
    save_orig_eids: Annotated[
        bool, typer.Option("--save-orig-eids", help="keep the keys of edges; the default: see --no-keep-edge-keys")
    ] = False,
    overwrite: OverwriteFlag = False,
    json: JsonFlag = False,
    *,
    where: RootSettings,
    settings: DispatchSettings,
    halo: NewHaloFlags,
) -> None:
    """Write a chunked graph as a dataset, in bounded memory.

    The same command resumes interrupted work.
    """
    from hopstream.dataset.manifest import read_manifest
    from hopstream.preparation.dispatch.dispatch_job import dispatch

    where.check()
    del save_orig_nids  # a dataset always keeps the keys of nodes
    if save_orig_eids and not settings.keep_edge_keys:
        raise SettingsError("--save-orig-eids and --no-keep-edge-keys contradict each other; leave one of them out")
    output, clock = Output(is_json=json), Clock()
    copying = WorkerSettings(num_workers=settings.num_workers, engine=settings.engine)
    if _goes_on(output, out_dir, where):
        place_parts(output, out_dir, read_manifest(out_dir), where, copying, overwrite=overwrite)
        return

    def tell(costs: DatasetEstimate, spec: DatasetJobSpec) -> None:
        inputs = {"the chunked graph": in_dir, "the folder of owners": partitions_dir}
        where.check_for(out_dir, spec.settings.num_parts, inputs)
        show_dataset_plan(output, "dispatch", costs, spec, halo_bytes=costs.halo.copied_bytes)

    with progress_bars() as progress:
        manifest = dispatch(
            in_dir, partitions_dir, out_dir, metadata_filename=metadata_filename, settings=settings,
            halo=halo.settings, overwrite=overwrite, progress=progress, on_estimate=tell,
        )  # fmt: skip
    show_measured(output, manifest)
    if manifest.halo is not None:
        show_halo(output, manifest.halo)
    show_written(output, out_dir, manifest)
    seconds = clock.cost().seconds
    output.text(
        f"{'':<7} {'speed':<8} {plural_text(int(manifest.report.cut.num_edges / max(seconds, 1e-9)), 'edge')}/s"
    )
    if where.is_on:
        place_parts(output, out_dir, manifest, where, copying, overwrite=overwrite)


def _goes_on(output: Output, out_dir: Path, where: RootSettings) -> bool:
    """Return whether an earlier command was interrupted while it placed the finished dataset."""
    from hopstream.dataset.copying.placing import is_being_placed
    from hopstream.dataset.manifest import read_manifest
    from hopstream.dataset.paths import MANIFEST

    if not where.has_roots or not (out_dir / MANIFEST).is_file():
        return False
    try:
        roots = where.root_list(read_manifest(out_dir).book.num_parts)
        is_begun = is_being_placed(out_dir, roots, move=where.move)
    except (FormatError, SettingsError):  # another dataset, which --overwrite may replace
        return False
    if not is_begun:
        return False
    output.stage("resume", "place", f"{out_dir} was written before", {"dataset": str(out_dir)})
    return True
