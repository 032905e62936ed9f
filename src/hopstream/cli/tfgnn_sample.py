"""Verb ``tfgnn-sample``: samples subgraphs with the flags of TF-GNN's ``tfgnn_sampler``.

Output files have the same names, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from hopstream.checks import check_choice
from hopstream.cli.export import export_and_show
from hopstream.cli.options import JsonFlag, MemoryFlag
from hopstream.cli.progress import Output
from hopstream.engine.settings import WORKERS_HELP
from hopstream.errors import SettingsError
from hopstream.export.settings import ExportSettings, OnDangling
from hopstream.tfgnn.tfrecord import output_name
from hopstream.uris import is_address, local_path, shown_uri

EDGES = {"edge": "directional", "node": "induced"}
"""Values of ``--edge_aggregation_method`` to types of subgraphs."""
ELSEWHERE = {
    "artifacts_path": "interrupted work resumes if the same command is given again",
    "direct_num_workers": "give --workers",
    "direct_running_mode": "give --workers, each of which is a process",
    "sample_size": "sample sizes are those of the spec",
    "max_num_edges": "nodes with any number of edges are sampled; give sample sizes in the spec",
    "remove_parallel_edges": "parallel edges are kept",
}
"""Unsupported flags to the remedy in the error message."""


def _refused(name: str) -> Any:
    """Declare a hidden flag that is always refused with a remedy."""

    def refuse(value: str | None) -> None:
        if value is not None:
            raise SettingsError(f"--{name} is not for this sampler: {ELSEWHERE[name]}")

    return typer.Option(f"--{name}", hidden=True, callback=refuse)


GraphSchemaFlag = Annotated[
    str,
    typer.Option(
        "--graph_schema",
        "--graph-schema",
        metavar="<path>",
        help="the .pbtxt of a unigraph, its folder, or that of a dataset",
        show_default=False,
    ),
]
SamplingSpecFlag = Annotated[
    Path,
    typer.Option("--sampling_spec", "--sampling-spec", help="a SamplingSpec in text form", show_default=False),
]
OutputSamplesFlag = Annotated[
    str,
    typer.Option(
        "--output_samples",
        "--output-samples",
        help="the file to write; name@16 and name-?????-of-00016 ask for 16 files, name-00000-of-00016 and so on",
        show_default=False,
    ),
]
SeedsFlag = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        "--input_seeds",
        "--input-seeds",
        help="a table of ids to start from; if not given, every node",
        show_default=False,
    ),
]
EdgeAggregationMethodFlag = Annotated[
    str,
    typer.Option(
        "--edge_aggregation_method",
        "--edge-aggregation-method",
        metavar="|".join(EDGES),
        help="edge: the sampled edges; node: all edges between the sampled nodes",
    ),
]
RunnerFlag = Annotated[
    str | None, typer.Option(help="a Beam runner; if not given, processes of this machine", show_default=False)
]
NumWorkersFlag = Annotated[int | None, typer.Option("--workers", help=WORKERS_HELP)]
NumShardsFlag = Annotated[
    int | None, typer.Option("--shards", help="number of files, if --output_samples does not give it")
]
RngSeedFlag = Annotated[int, typer.Option("--rng_seed", "--rng-seed", "--seed", help="seed of all randomness")]
SeedIdsFlag = Annotated[
    bool, typer.Option("--seed_ids", "--seed-ids", help="also write context/seed_id and context/sample_id")
]
NodeIdsFlag = Annotated[
    bool,
    typer.Option(
        "--node_ids", "--node-ids", help="also write #id, raw ids of nodes, if the schema does not declare it"
    ),
]
ReadoutFlag = Annotated[bool, typer.Option(help="also write a readout of the seed: _readout, _readout/seed")]
LabelsFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--labels", help="a feature that moves to the readout; of links, a column of the seeds", show_default=False
    ),
]
LinkSetFlag = Annotated[
    str | None,
    typer.Option(
        "--link_set", "--link-set", help="node set of links, or two as source,target, if nothing else gives it"
    ),
]
OnDanglingFlag = Annotated[
    str,
    typer.Option("--on_dangling", "--on-dangling", metavar="error|drop", help="edges whose ends are not nodes"),
]
DataPathFlag = Annotated[
    str | None,
    typer.Option(
        "--data_path", "--data-path", help="folder that file names are relative to; if not given, the schema's"
    ),
]
OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="replace an export of this name")]
BeamOptionsArgument = Annotated[
    list[str] | None, typer.Argument(help="options of the Beam pipeline, after --", show_default=False)
]
ArtifactsPathFlag = Annotated[str | None, _refused("artifacts_path")]
DirectNumWorkersFlag = Annotated[str | None, _refused("direct_num_workers")]
DirectRunningModeFlag = Annotated[str | None, _refused("direct_running_mode")]
SampleSizeFlag = Annotated[str | None, _refused("sample_size")]
MaxNumEdgesFlag = Annotated[str | None, _refused("max_num_edges")]
RemoveParallelEdgesFlag = Annotated[str | None, _refused("remove_parallel_edges")]


def run(  # noqa: PLR0913, PLR0917  flags of another program
    graph_schema: GraphSchemaFlag,
    sampling_spec: SamplingSpecFlag,
    output_samples: OutputSamplesFlag,
    seeds: SeedsFlag = None,
    edge_aggregation_method: EdgeAggregationMethodFlag = "edge",
    runner: RunnerFlag = None,
    num_workers: NumWorkersFlag = None,
    num_shards: NumShardsFlag = None,
    rng_seed: RngSeedFlag = 0,
    seed_ids: SeedIdsFlag = False,
    node_ids: NodeIdsFlag = False,
    readout: ReadoutFlag = False,
    labels: LabelsFlag = None,
    link_set: LinkSetFlag = None,
    on_dangling: OnDanglingFlag = "error",
    data_path: DataPathFlag = None,
    memory: MemoryFlag = None,
    overwrite: OverwriteFlag = False,
    json: JsonFlag = False,
    beam_options: BeamOptionsArgument = None,
    artifacts_path: ArtifactsPathFlag = None,
    direct_num_workers: DirectNumWorkersFlag = None,
    direct_running_mode: DirectRunningModeFlag = None,
    sample_size: SampleSizeFlag = None,
    max_num_edges: MaxNumEdgesFlag = None,
    remove_parallel_edges: RemoveParallelEdgesFlag = None,
) -> None:
    """Sample a subgraph per seed, with the flags of TF-GNN's tfgnn_sampler.

    The same command resumes interrupted work.
    """
    del artifacts_path, direct_num_workers, direct_running_mode  # their callbacks refuse any value
    del sample_size, max_num_edges, remove_parallel_edges
    if is_address(graph_schema):
        raise SettingsError(
            f"--graph_schema is {shown_uri(graph_schema)}, the address of a server; give a unigraph or the folder of a "
            "dataset, or sample from servers with hopstream export"
        )
    local_path(graph_schema)
    check_choice("--edge_aggregation_method", edge_aggregation_method, EDGES)
    check_choice("--on_dangling", on_dangling, get_args(OnDangling))
    if beam_options and runner is None:
        raise SettingsError(f"{beam_options} are options of a Beam pipeline; give --runner too")
    options = () if runner in (None, "DirectRunner") else (f"--runner={runner}",)
    settings = ExportSettings(
        num_workers=num_workers, num_shards=num_shards, rng_seed=rng_seed, seed_ids=seed_ids, node_ids=node_ids,
        one_file=num_shards is None and output_name(output_samples)[1] is None,
        engine="local" if runner is None else "beam", beam_options=(*options, *(beam_options or ())),
        subgraph_type=EDGES[edge_aggregation_method],  # type: ignore[arg-type]
        readout=readout, labels=tuple(labels or ()), link_set=link_set, memory=memory,
        on_dangling=on_dangling,  # type: ignore[arg-type]
        data_path=data_path,
    )  # fmt: skip
    export_and_show(
        graph_schema, sampling_spec, output_samples, seeds, settings, overwrite=overwrite,
        output=Output(is_json=json),
    )  # fmt: skip
