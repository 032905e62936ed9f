"""How is a whole dataset verified, alone or against what it was written from?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hopstream.engine.settings import memory_bytes
from hopstream.errors import FormatError
from hopstream.graph.checksums import fingerprint_of
from hopstream.partition.audit.edges import EDGE_BYTES, Links, StoredEdges, check_by_key, check_stored
from hopstream.partition.audit.files import Files
from hopstream.partition.audit.halo import check_halo
from hopstream.partition.audit.nodes import KnownNodes, check_keys, check_splits
from hopstream.partition.audit.reference import Against, Reference, open_reference
from hopstream.partition.audit.report import Findings, VerifyReport
from hopstream.partition.audit.unkeyed import derive_keys, told_by_links, told_by_source
from hopstream.partition.lock import locked
from hopstream.partition.manifest import Manifest, graph_id_of, graph_schema, read_manifest
from hopstream.partition.paths import MANIFEST
from hopstream.partition.settings import Progress
from hopstream.schema import EdgeType, GraphSchema, type_label

MIN_WINDOW_EDGES = 1 << 16
MAX_FINDINGS = 100


def verify_dataset(
    root: str | Path, *, against: Against | None = None, memory: str = "1GiB", max_findings: int = MAX_FINDINGS,
    progress: Progress | None = None,
) -> VerifyReport:  # fmt: skip
    """Check everything that a dataset says, and find all that is wrong, not only the first.

    Checksums say that files are those that were written. Whatever they say, the rest is checked too: that every node
    and edge is there once, at the part that owns it; that maps of keys, times, weights, neighbours, splits and links
    agree with each other; that what is there is the graph that the manifest names; and, with ``against``, that it is
    that graph, edge by edge and feature by feature.

    Args:
        root: The dataset.
        against: What it was written from: a chunked graph, which is read a stretch at a time, or whatever
            ``read_graph`` reads, a dataset, or a graph in memory.
        memory: About how much memory edges may take while they are compared; more of it means fewer walks over them.
            Beside this 16 bytes are taken per node (24 with times).
        max_findings: The most findings that are listed; the rest is counted.
        progress: Called as ``progress("verify", done, total)``.

    Returns:
        What was checked and what was found.

    Raises:
        FormatError: ``root`` is no dataset, or ``against`` cannot be read.
        SchemaError: ``against`` makes no graph.
        SettingsError: ``memory`` is no size.
        StateError: Another process changes the dataset.
    """
    root = Path(root)
    if not (root / MANIFEST).is_file():
        raise FormatError(f"{root / MANIFEST} is missing; {root} is not a dataset")
    with locked(root, is_reader=True):
        return _verify(root, against, memory, max_findings, progress)


def _verify(
    root: Path, against: Against | None, memory: str, max_findings: int, progress: Progress | None
) -> VerifyReport:
    """Do it, while nobody changes the dataset."""
    max_edges = max(MIN_WINDOW_EDGES, memory_bytes(memory) // EDGE_BYTES)
    findings = Findings(max_findings)
    findings.checked("manifest")
    try:
        manifest = read_manifest(root)
    except FormatError as error:
        findings.add("manifest", MANIFEST, str(error).removeprefix(f"{root / MANIFEST} "))
        findings.skip("everything else: without a manifest nobody knows what a dataset holds")
        return findings.report()
    reference = open_reference(against) if against is not None else None
    _Run(
        files=Files(root, manifest, findings),
        manifest=manifest,
        findings=findings,
        reference=reference,
        max_edges=max_edges,
        progress=progress or (lambda stage, done, total: None),
    ).run()
    return findings.report()


@dataclass(slots=True, kw_only=True)
class _Run:
    """One verification."""

    files: Files
    manifest: Manifest
    findings: Findings
    reference: Reference | None
    max_edges: int
    progress: Progress
    num_done: int = 0

    def run(self) -> None:
        schema = self.manifest.schema
        for name in self.files.records:
            self.files.check(name)
            self._advance()
        self.files.check_others()
        reference = self._compared()
        sums: dict[str, list[int]] = {}
        nodes: dict[str, KnownNodes] = {}
        splits: dict[str, dict[str, int]] = {}
        edge_splits: dict[str, dict[str, int]] = {}
        for node_type in schema.nodes:
            known = check_keys(
                self.files, node_type, sums, reference if reference and node_type in reference.num_nodes else None
            )
            if known is not None:
                nodes[node_type] = known
            if node_type in schema.splits:
                splits[node_type] = check_splits(self.files, node_type, reference)
            self._advance()
        for edge_type in schema.edges:
            found = self._check_edges(edge_type, nodes, reference)
            if found is not None:
                sums[type_label(edge_type)] = found
            if edge_type in schema.edge_splits:
                of_type = check_splits(self.files, edge_type, reference)
                edge_splits |= {type_label(edge_type): of_type} if schema.edge_splits[edge_type] else {}
            self._advance()
        self._check_graph(sums, splits, edge_splits)
        check_halo(self.files)

    def _advance(self) -> None:
        total = len(self.files.records) + len(self.manifest.schema.nodes) + len(self.manifest.schema.edges)
        self.num_done += 1
        self.progress("verify", self.num_done, total)

    def _compared(self) -> Reference | None:
        """The source, without what the dataset does not have in the same number; tells of differences."""
        source, schema, findings = self.reference, self.manifest.schema, self.findings
        if source is None:
            return None
        theirs: GraphSchema = source.schema
        ours_by_name: Mapping[str, Mapping[str, object]] = {type_label(t): f for t, f in _tables(schema)}
        theirs_by_name: Mapping[str, Mapping[str, object]] = {type_label(t): f for t, f in _tables(theirs)}
        for label in {**ours_by_name, **theirs_by_name}:
            findings.checked("schema")
            ours, other = ours_by_name.get(label), theirs_by_name.get(label)
            if ours is None or other is None:
                findings.add("schema", label, f"is a type of the {'source' if ours is None else 'dataset'} alone")
                continue
            for name in {**ours, **other}:
                if ours.get(name) != other.get(name):
                    what = f"is {_shown(ours.get(name))}; in the source it is {_shown(other.get(name))}"
                    findings.add("schema", f"{label}.{name}", what)
        self._compare_splits(theirs)
        return replace(
            source,
            num_nodes={t: n for t, n in source.num_nodes.items() if self._is_same_size(t, n)},
            num_edges={t: n for t, n in source.num_edges.items() if self._is_same_size(t, n)},
        )

    def _compare_splits(self, theirs: GraphSchema) -> None:
        mine, other = _named_splits(self.manifest.schema), _named_splits(theirs)
        for label in {**mine, **other}:
            if set(mine.get(label, ())) != set(other.get(label, ())):
                text = f"has splits {sorted(mine.get(label, ()))}; the source has {sorted(other.get(label, ()))}"
                self.findings.add("schema", label, text)

    def _is_same_size(self, owner: str | EdgeType, count: int) -> bool:
        """The dataset has as many rows of a type as the source; tells where not."""
        book, schema = self.manifest.book, self.manifest.schema
        if owner not in schema.nodes and owner not in schema.edges:
            return False
        got = book.num_ids(owner) if isinstance(owner, str) else book.num_edges(owner)
        if got != count:
            self.findings.add("schema", type_label(owner), f"has {got} rows; the source has {count}")
        return got == count

    def _check_edges(
        self, edge_type: EdgeType, nodes: Mapping[str, KnownNodes], reference: Reference | None
    ) -> list[int] | None:
        label = type_label(edge_type)
        if not {edge_type[0], edge_type[2]} <= nodes.keys():
            self.findings.skip(f"edges of {label}: the keys of its nodes cannot be used")
            return None
        stored = [StoredEdges(self.files, edge_type, d, nodes) for d in self.manifest.directions]
        usable = [edges for edges in stored if edges.is_usable]
        for edges in usable:
            check_stored(edges)
        links = None
        if edge_type in self.manifest.schema.edge_splits:
            links = Links(self.files, edge_type, nodes)
            links = links if links.is_usable else None
        of_source = reference if reference is not None and edge_type in reference.num_edges else None
        if not usable or not all(self._has_keys(edges, links, of_source) for edges in usable):
            if usable:
                why = "the dataset keeps no edge keys, and there is neither a source nor links to know them from"
                why = "a file of keys cannot be used" if self.manifest.has_edge_keys else why
                self.findings.skip(f"edges of {label} one by one: {why}")
            return None
        return check_by_key(usable, links, of_source, self.max_edges)

    def _has_keys(self, edges: StoredEdges, links: Links | None, reference: Reference | None) -> bool:
        """The keys of edges are known; finds them out where the dataset does not keep them."""
        if edges.has_keys or self.manifest.has_edge_keys:
            return edges.has_keys
        name = self.manifest.time_attr
        own_times = {name} & self.manifest.schema.edges[edges.edge_type].keys()
        is_timed_alike = reference is not None and own_times <= reference.schema.edges[edges.edge_type].keys()
        if not edges.knows_times or not (is_timed_alike or links is not None):
            return False
        if reference is not None and is_timed_alike:
            told = told_by_source(edges, reference)
        elif links is not None:
            told = told_by_links(edges, links)
        edges.set_keys(derive_keys(edges, told, self.max_edges))
        return True

    def _check_graph(
        self, sums: dict[str, list[int]], splits: dict[str, dict[str, int]], edge_splits: dict[str, dict[str, int]]
    ) -> None:
        """The graph is the one that the manifest names."""
        schema = self.manifest.schema
        wanted = [*schema.nodes, *map(type_label, schema.edges)]
        if any(label not in sums for label in wanted) or any(
            len(splits[t]) < len(names) for t, names in schema.splits.items()
        ):
            self.findings.skip("graph_id: it is made of all that the graph holds, and some of that cannot be read")
            return
        got = graph_id_of(fingerprint_of(graph_schema(schema), sums, splits, edge_splits), self.manifest.time_attr)
        self.findings.checked("graph")
        if got != self.manifest.graph_id:
            what = f"says {self.manifest.graph_id}; what the parts hold is {got}: something is not what was written"
            self.findings.add("graph", "graph_id", what)


def _tables(schema: GraphSchema) -> list[tuple[str | EdgeType, Mapping[str, object]]]:
    return [*schema.nodes.items(), *schema.edges.items()]


def _named_splits(schema: GraphSchema) -> dict[str, tuple[str, ...]]:
    """Type label to the names of its splits, where there are any."""
    found = {t: names for t, names in schema.splits.items() if names}
    return found | {type_label(t): names for t, names in schema.edge_splits.items() if names}


def _shown(feature: object) -> str:
    return "not there" if feature is None else str(feature)
