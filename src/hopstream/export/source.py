"""Opens the source of an export: a dataset, servers, or a unigraph.

A unigraph is converted to a dataset first.

The dataset of a unigraph is in the export's hidden folder until the export is finished. It has one part; the number of
parts does not matter, because samples do not depend on the partitioning.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hopstream.dataset.paths import MANIFEST
from hopstream.engine.atomic_folder import WorkFolder
from hopstream.engine.job import digest_of
from hopstream.engine.settings import Progress, WorkSettings
from hopstream.errors import FormatError, SettingsError
from hopstream.export.plan import op_name_of
from hopstream.export.settings import ExportSettings
from hopstream.ingest.chunking.run import table_states
from hopstream.ingest.raw_tables.metadata import TablesMetadata
from hopstream.ingest.source_paths import description_of, is_unigraph, read_metadata
from hopstream.ingest.tables import TableSettings
from hopstream.places.paths import path_of, uri_of
from hopstream.preparation.prepare import prepare
from hopstream.sample.plan import SamplePlan
from hopstream.schema import STRING, FeatureSchema, GraphSchema
from hopstream.store import open_store
from hopstream.store.contract import BY_WEIGHT, Store
from hopstream.tfgnn.graph_schema import read_schema
from hopstream.tfgnn.sampling_spec import LINK_ENDS, WEIGHT_NAMES
from hopstream.uris import is_address


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """The source of an export.

    Attributes:
        located: Location for ``open_store``, or the path of a unigraph's schema.
        graph_id: Identifies the graph; it differs if the graph has changed.
        schema: Types and features of the graph.
        store: The opened store; None for a unigraph.
        tables: Settings for reading the tables of a unigraph.
        link_set: The node sets of links' ends, ``source,target``, if the schema of a unigraph has a readout of links.
        declared_ids: Node sets of a unigraph whose schema declares the feature ``#id``.
    """

    located: str
    graph_id: str
    schema: GraphSchema
    store: Store | None
    tables: TableSettings
    link_set: str | None = None
    declared_ids: tuple[str, ...] = ()

    def check_plan(self, plan: SamplePlan) -> None:
        """Refuse plans that a unigraph does not support.

        Raises:
            SettingsError: The source is a unigraph, and an op draws by time.
        """
        late = [op.name for op in plan.ops if op.strategy == "last"]
        if self.store is None and late:
            raise SettingsError(
                f"op {op_name_of(late[0])!r} samples by time, but a unigraph does not declare the feature with the "
                "time; write a dataset of it with time_attr='…', and export from that"
            )

    @contextmanager
    def opened(
        self, work: WorkFolder, plan: SamplePlan, settings: ExportSettings, progress: Progress
    ) -> Iterator[tuple[str, Store]]:
        """Give the location that workers open, and the opened store.

        A unigraph is converted to a dataset first; an interrupted conversion is resumed.

        Raises:
            HopstreamError: The tables cannot be converted.
            OSError: The system failed; finished work is kept for the next call.
        """
        if self.store is not None:
            yield self.located, self.store
            return
        weights = [name for name in WEIGHT_NAMES if any(name in of for of in self.schema.edges.values())]
        is_weighted = any(op.strategy in BY_WEIGHT for op in plan.ops)
        weight_attr = weights[0] if is_weighted and weights else None
        out = work.path / f"dataset-{digest_of([self.graph_id, weight_attr, self.tables.on_dangling])[:16]}"
        for other in work.path.glob("*dataset-*"):
            if not other.name.lstrip(".").startswith(out.name):
                shutil.rmtree(other)
        if not (out / MANIFEST).exists():
            prepare(
                self.located, out, num_parts=1, method="hash", direction="out", weight_attr=weight_attr,
                tables=self.tables,
                work=WorkSettings(memory=settings.memory, num_workers=settings.num_workers), progress=progress,
            )  # fmt: skip
        with open_store(out) as store:
            yield str(out), store


@contextmanager
def open_source(source: str | Path, tables: TableSettings) -> Iterator[ExportSource]:
    """Open a dataset or servers, or read the schema of a unigraph.

    Args:
        source: A location for ``open_store``, or the ``.pbtxt`` of a unigraph or its folder.
        tables: Settings for reading the tables of a unigraph.

    Raises:
        SettingsError: The source is an opened store, which workers cannot open; or ``tables.data_path`` is given, and
            the source is not a unigraph.
        FormatError: The source is neither a dataset nor a unigraph.
        SchemaError: The schema of a unigraph contradicts itself.
    """
    located = located_source(source)
    schema = None if "://" in located else _unigraph_schema(Path(located))
    if schema is None and "://" not in located and Path(located).is_dir() and not (Path(located) / MANIFEST).is_file():
        raise FormatError(
            f"{source} is neither a dataset (it has no {MANIFEST}) nor a unigraph (it has no .pbtxt, or has a "
            f"metadata.json too); write a dataset of its tables: hopstream partition {source} --direction out --out "
            "parts"
        )
    if schema is None:
        if tables.data_path is not None:
            raise SettingsError(f"data_path is only for unigraphs; {source} is not one: leave it out")
        with open_store(located) as store:
            yield ExportSource(
                located=located, graph_id=store.graph_id, schema=store.schema, store=store, tables=tables
            )
        return
    metadata = read_metadata(schema, tables.data_path)
    states = digest_of(table_states(metadata))
    yield ExportSource(
        located=str(schema), graph_id=states, schema=_schema_of(metadata), store=None, tables=tables,
        link_set=_link_set_of(schema),
        declared_ids=tuple(t for t, of in metadata.nodes.items() if of.declares_ids),
    )  # fmt: skip


def located_source(source: str | Path) -> str:
    """Return a location that workers can open from any working directory.

    Raises:
        SettingsError: The source is an opened store, which workers cannot open, or a URI that is no server's address.
    """
    if isinstance(source, str) and is_address(source):
        from hopstream.store.cluster import parse_locations  # only here: it loads the network's libraries

        parse_locations(source)
        return source
    if not isinstance(source, str | Path):
        raise SettingsError(
            f"source is a {type(source).__name__}; workers open it for themselves: give a folder, a cluster.json or "
            "addresses"
        )
    return uri_of(path_of(source))


def _unigraph_schema(path: Path) -> Path | None:
    """Return the path of a unigraph's schema, or None if the path is not a unigraph."""
    if path.is_dir() and (path / MANIFEST).is_file():
        return None
    described = description_of(path)
    return described if is_unigraph(described) else None


def _link_set_of(path: Path) -> str | None:
    """Return ``link_set`` from the readout edge sets of a unigraph's schema, or None."""
    sets = read_schema(path).edge_sets
    return ",".join(sets[name].source for name in LINK_ENDS) if all(name in sets for name in LINK_ENDS) else None


def _schema_of(tables: TablesMetadata) -> GraphSchema:
    """Return the schema of the graph in the tables of a unigraph."""
    nodes = {
        t: {
            **({of.id_column: FeatureSchema(dtype=STRING)} if of.id_column is not None and of.keeps_ids else {}),
            **{name: feature.schema for name, feature in of.features.items() if feature.schema is not None},
        }
        for t, of in tables.nodes.items()
    }
    edges = {
        t: {name: feature.schema for name, feature in of.features.items() if feature.schema is not None}
        for t, of in tables.edges.items()
    }
    return GraphSchema(nodes=nodes, edges=edges)
