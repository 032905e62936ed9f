"""Verifies a whole dataset, alone or against its source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hopstream.arrays import IntArray
from hopstream.assign.owners import META, owner_blocks, owners_path, read_meta
from hopstream.dataset.copying.local_copy import folder_of, source_path
from hopstream.dataset.manifest import Manifest, graph_id_of, graph_schema, read_manifest
from hopstream.dataset.paths import MANIFEST, ROOTS, is_here, read_roots
from hopstream.dataset.settings import Progress
from hopstream.engine.atomic_folder import locked
from hopstream.engine.settings import Needs, WorkerSettings, allot, memory_bytes
from hopstream.errors import FormatError, SettingsError, UnknownNameError
from hopstream.graph.graph import fingerprint_of
from hopstream.preparation.audit.edges import (
    EDGE_BYTES,
    LinkColumns,
    check_by_key,
    derive_keys,
    told_by_links,
    told_by_source,
)
from hopstream.preparation.audit.halo import check_halo
from hopstream.preparation.audit.nodes import CheckedNodes, check_keys, check_splits
from hopstream.preparation.audit.reference import Against, Reference, open_reference
from hopstream.preparation.audit.report import KINDS, Files, Findings, Kind, VerifyReport
from hopstream.preparation.audit.stored_edges import OF_EDGES, StoredEdges, check_stored
from hopstream.schema import EdgeType, GraphSchema, timed_edge_types, type_label
from hopstream.uris import local_path


def check_owner_files(files: Files, node_type: str, ids: IntArray, folder: Path) -> None:
    """Report nodes of one type that the audited parts and a folder of owners place in different parts.

    Args:
        files: The dataset.
        node_type: The type.
        ids: int64[num_nodes], the id of each key, -1 if no audited part has the key.
        folder: Holds ``<node type>.npy`` or ``<node type>.txt``; if it holds both, both are compared.

    Raises:
        FormatError: A file is missing or cannot be read.
        SchemaError: A file does not have one integer for each node.
        IdRangeError: A file names a part that does not exist.
    """
    book, findings = files.manifest.book, files.findings
    offsets = book.node_offsets[node_type]
    path = owners_path(folder, node_type)
    told = {node_type: path}
    if path.suffix == ".npy" and (text := path.with_suffix(".txt")).is_file():
        told[text.name] = text
    for where, file in told.items():
        for first, block in owner_blocks(file, len(ids), book.num_parts):
            some = ids[first : first + len(block)]
            parts = np.searchsorted(offsets, some, side="right") - 1
            wrong = np.flatnonzero((some >= 0) & (parts != block))
            places = (f"key {first + row} (part {parts[row]}, not {block[row]})" for row in wrong)
            findings.checked("nodes", int(np.count_nonzero(some >= 0)) if file == path else 0)
            findings.add("nodes", where, "is in another part than in the folder of owners", len(wrong), places)


def check_owners_meta(files: Files, folder: Path) -> None:
    """Report a ``partition_meta.json`` in a folder of owners that names another number of parts.

    Raises:
        FormatError: The file cannot be read.
    """
    meta, book, findings = read_meta(folder), files.manifest.book, files.findings
    if meta is not None and meta.num_parts != book.num_parts:
        findings.add("nodes", META, f"has {meta.num_parts} parts; the dataset has {book.num_parts}")


MIN_WINDOW_EDGES = 1 << 16
PROCESS_BYTES = 256 << 20
"""Memory of a process with loaded libraries and compiled kernels that compares blocks of a million edges."""
NODE_BYTES, HALO_NODE_BYTES = 64, 32
"""Memory per node: key, id and time, with their expected values; and memory per node for halos with a budget."""
MAX_FINDINGS = 100


def verify_dataset(  # noqa: PLR0913  what is compared, how much of it, and how
    root: str | Path, *, against: Against | None = None, owners: str | Path | None = None,
    parts: Sequence[int] | None = None, memory: str | None = None, max_findings: int = MAX_FINDINGS,
    progress: Progress | None = None,
) -> VerifyReport:  # fmt: skip
    """Check the whole content of a dataset, and report all defects, not only the first.

    Checksums prove that files are unchanged. The rest is checked in any case. Every node and edge must be stored once,
    in the part that owns it. Maps of keys, times, weights, neighbours, splits and links must agree with each other. The
    content must have the graph id of the manifest. With ``against``, every edge and feature must equal the source.

    Args:
        root: The dataset.
        against: The source: a chunked graph, which is read in ranges, or anything that ``read_graph`` reads, a dataset,
            or a graph in memory.
        owners: A folder with the part of each node, as of ``assign_folder``, that the dataset was partitioned by.
        parts: The parts to check, such as those of one of several roots; None for all. Checks that need other parts are
            skipped.
        memory: Most memory of the process, such as ``4GiB``, without an ``against`` in memory; None for a share of the
            free memory. Edges are compared in the memory that nodes leave: more memory means fewer scans of the edges.
        max_findings: Most findings to list, shared among the parts; further findings are counted.
        progress: Called as ``progress("verify", done, total)``.

    Returns:
        The checks, the findings, and the skipped checks.

    Raises:
        FormatError: ``root`` is no dataset, or ``against`` or a file of ``owners`` cannot be read. Or all parts are
            asked for and some lie in other roots.
        SchemaError: ``against`` does not form a graph, or a file of ``owners`` does not have one integer for each node.
        IdRangeError: A file of ``owners`` names a part that does not exist.
        SettingsError: ``memory`` is no size or too small, or ``parts`` is empty.
        StateError: Another process changes the dataset now.
        UnknownNameError: The dataset has no such part.
    """
    root = folder_of(root)
    owners = None if owners is None else local_path(owners)
    if isinstance(against, str | os.PathLike):
        against = source_path(against)
    if not (root / MANIFEST).is_file():
        raise FormatError(f"{root / MANIFEST} is missing; {root} is not a dataset")
    if memory is not None:
        memory_bytes(memory)
    findings = Findings(max_findings)
    with locked(root, is_reader=True):
        _verify(root, (against, owners), parts, findings, memory, progress or (lambda stage, done, total: None))
    return findings.report()


def _verify(
    root: Path, sources: tuple[Against | None, Path | None], parts: Sequence[int] | None, findings: Findings,
    memory: str | None, progress: Progress,
) -> None:  # fmt: skip
    against, owners = sources
    findings.checked("manifest")
    try:
        manifest = read_manifest(root)
    except FormatError as error:
        findings.add("manifest", MANIFEST, str(error).removeprefix(f"{root / MANIFEST} "))
        others = [kind for kind in KINDS if kind != "manifest"]
        findings.skip(others, "without a manifest the content of the dataset is unknown")
        return
    if not manifest.has_digest:
        findings.skip("manifest", "an earlier revision wrote it: made_by and report have no checksum")
    wanted = _wanted_parts(root, manifest, parts)
    reference = open_reference(against) if against is not None else None
    files = Files(root, manifest, findings, wanted)
    if owners is not None:
        check_owners_meta(files, Path(owners))
    _Audit(
        files=files,
        manifest=manifest,
        findings=findings,
        reference=reference,
        owners=owners,
        max_edges=_window_edges(manifest, memory),
        progress=progress,
    ).run()


def _window_edges(manifest: Manifest, memory: str | None) -> int:
    """Return the number of edges to compare at a time in the memory that nodes leave.

    Raises:
        SettingsError: The memory is too small.
    """
    schema, book = manifest.schema, manifest.book
    num_nodes = sum(map(book.num_ids, schema.nodes))
    halo = manifest.halo
    has_budget = halo is not None and (halo.budget_bytes, halo.edge_budget_bytes) != (None, None)
    taken = PROCESS_BYTES + num_nodes * (NODE_BYTES + has_budget * HALO_NODE_BYTES)
    needs = Needs.of_one(taken + MIN_WINDOW_EDGES * EDGE_BYTES, f"verifying {num_nodes} nodes needs")
    return (allot(memory, WorkerSettings(num_workers=0), (needs,)).memory_bytes - taken) // EDGE_BYTES


def _wanted_parts(root: Path, manifest: Manifest, parts: Sequence[int] | None) -> list[int]:
    """Return the parts to check, ascending.

    Raises:
        UnknownNameError: The dataset has no such part.
        SettingsError: ``parts`` is empty.
        FormatError: All parts are asked for, and some lie in other roots.
    """
    num_parts = manifest.book.num_parts
    if parts is not None:
        wrong = [part for part in parts if not 0 <= part < num_parts]
        if wrong:
            raise UnknownNameError(f"{root} has no part {wrong[0]}; parts are numbered 0..{num_parts - 1}")
        if not len(parts):
            raise SettingsError(f"parts is empty; give some of 0..{num_parts - 1}, or leave it out to verify all")
        return sorted(set(parts))
    here = [part for part in range(num_parts) if is_here(root, part)]
    away = sorted(set(range(num_parts)) - set(here))
    uris = _roots_of(root, manifest, away)
    if uris:
        check = f"verify the parts that it has with --parts {','.join(map(str, here))}" if here else "check the roots"
        raise FormatError(
            f"{root} lacks parts {', '.join(map(str, away[:20]))} of 0..{num_parts - 1}, which {ROOTS} lists in "
            f"{' and '.join(uris)}; {check}, and each other root with its own parts, or pull all parts into one folder"
        )
    return list(range(num_parts))


def _roots_of(root: Path, manifest: Manifest, parts: Sequence[int]) -> list[str]:
    """Return the roots of some parts if all of these parts are known to lie elsewhere, else an empty list."""
    try:
        roots = read_roots(root)
    except FormatError:
        return []  # reported as a finding
    if roots is None or roots.dataset_id != manifest.dataset_id or not all(map(roots.uris_of, parts)):
        return []
    return list(dict.fromkeys(uri for part in parts for uri in roots.uris_of(part)))


@dataclass(slots=True, kw_only=True)
class _Audit:
    """Run of a verification."""

    files: Files
    manifest: Manifest
    findings: Findings
    reference: Reference | None
    owners: Path | None
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
        nodes: dict[str, CheckedNodes] = {}
        splits: dict[str, dict[str, int]] = {}
        edge_splits: dict[str, dict[str, int]] = {}
        for node_type in schema.nodes:
            known = check_keys(
                self.files, node_type, sums, reference if reference and node_type in reference.num_nodes else None
            )
            if known is not None:
                nodes[node_type] = known
                if self.owners is not None:
                    check_owner_files(self.files, node_type, known.ids, self.owners)
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
        self._tell_absent()
        if not self.files.is_whole:
            self._tell_of_other_parts()

    def _tell_absent(self) -> None:
        """Record what a dataset lacks, so that every kind of check has a result."""
        manifest, schema, absent = self.manifest, self.manifest.schema, self.findings.absent
        if self.reference is None:
            absent(("schema", "features"), "no source was given to compare with")
        if not manifest.has_neighbor_keys:
            absent("neighbors", "the dataset keeps no keys of neighbours")
        if not any(timed_edge_types(schema, manifest.time_attr, d) for d in manifest.directions):
            absent("times", "the dataset has no times")
        if manifest.weight_attr is None:
            absent("weights", "the dataset has no weights")
        if not schema.edge_splits:
            absent("links", "the dataset keeps no links")
        if not _named_splits(schema):
            absent("splits", "the dataset has no splits")
        if manifest.halo is None:
            absent("halo", "the dataset has no halo")

    def _tell_of_other_parts(self) -> None:
        """Record what the audited parts alone cannot show."""
        here, skip = "only some parts are checked", self.findings.skip
        skip("nodes", f"{here}, so nodes that are in no part are not found")
        skip("edges", f"{here}, so edges that are in no part are not found, nor wrong ends in other parts")
        skip("book", f"{here}, so ids in other parts are not compared")
        if len(self.manifest.directions) > 1:
            skip("features", f"{here}, so two directions are not compared")

    def _advance(self) -> None:
        total = len(self.files.records) + len(self.manifest.schema.nodes) + len(self.manifest.schema.edges)
        self.num_done += 1
        self.progress("verify", self.num_done, total)

    def _compared(self) -> Reference | None:
        """Return the source, without types of another size than in the dataset; report differences."""
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
                whose = "source" if ours is None else "dataset"
                findings.add("schema", label, f"is a type of the {whose} only")
                findings.skip("features", f"{label} is a type of the {whose} only")
                continue
            for name in {**ours, **other}:
                if ours.get(name) != other.get(name):
                    what = f"is {_shown(ours.get(name))}; in the source it is {_shown(other.get(name))}"
                    findings.add("schema", f"{label}.{name}", what)
                    findings.skip("features", f"{label}.{name} is not the source's")
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

    def _is_same_size(self, entity: str | EdgeType, count: int) -> bool:
        """Return whether dataset and source have the same number of rows of a type; report a difference."""
        book, schema = self.manifest.book, self.manifest.schema
        if entity not in schema.nodes and entity not in schema.edges:
            return False
        got = book.num_ids(entity) if isinstance(entity, str) else book.num_edges(entity)
        if got != count:
            self.findings.add("schema", type_label(entity), f"has {got} rows; the source has {count}")
            kinds: list[Kind] = ["features"] if isinstance(entity, str) else ["features", "edges", "ownership"]
            why = f"{type_label(entity)} has {got} rows and the source {count}, so they are not compared"
            self.findings.skip(kinds, why)
        return got == count

    def _check_edges(
        self, edge_type: EdgeType, nodes: Mapping[str, CheckedNodes], reference: Reference | None
    ) -> list[int] | None:
        label = type_label(edge_type)
        if not {edge_type[0], edge_type[2]} <= nodes.keys():
            self.findings.skip(OF_EDGES, f"{label}: the keys of its nodes cannot be used")
            return None
        stored = [StoredEdges(self.files, edge_type, d, nodes) for d in self.manifest.directions]
        usable = [edges for edges in stored if edges.is_usable]
        for edges in usable:
            check_stored(edges)
        links = None
        if edge_type in self.manifest.schema.edge_splits:
            links = LinkColumns(self.files, edge_type, nodes)
            links = links if links.is_usable else None
        of_source = reference if reference is not None and edge_type in reference.num_edges else None
        if not usable or not all(self._has_keys(edges, links, of_source) for edges in usable):
            if usable:
                why = "the dataset keeps no edge keys, and neither a source nor links give them"
                why = "a file of keys cannot be used" if self.manifest.has_edge_keys else why
                self.findings.skip(("edges", "ownership", "links", "features"), f"{label}: {why}")
            return None
        return check_by_key(usable, links, of_source, self.max_edges)

    def _has_keys(self, edges: StoredEdges, links: LinkColumns | None, reference: Reference | None) -> bool:
        """Return whether the keys of edges are known, after deriving them if the dataset does not store them."""
        if edges.has_keys or self.manifest.has_edge_keys:
            return edges.has_keys
        name = self.manifest.time_attr
        own_times = {name} & self.manifest.schema.edges[edges.edge_type].keys()
        is_timed_alike = reference is not None and own_times <= reference.schema.edges[edges.edge_type].keys()
        if not self.files.is_whole:  # links of other parts, and times of their nodes, are unknown
            links, is_timed_alike = None, is_timed_alike and not edges.takes_times_of_others
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
        """Compare the graph id of the content with that of the manifest."""
        schema = self.manifest.schema
        wanted = [*schema.nodes, *map(type_label, schema.edges)]
        if any(label not in sums for label in wanted) or any(
            len(splits[t]) < len(names) for t, names in schema.splits.items()
        ):
            what = "cannot be read" if self.files.is_whole else "lies in parts that are not checked"
            self.findings.skip("graph", f"its id covers the whole graph, and some of it {what}")
            return
        got = graph_id_of(fingerprint_of(graph_schema(schema), sums, splits, edge_splits), self.manifest.time_attr)
        self.findings.checked("graph")
        if got != self.manifest.graph_id:
            what = f"says {self.manifest.graph_id}; the parts hold {got}: their content has changed"
            self.findings.add("graph", "graph_id", what)


def _tables(schema: GraphSchema) -> list[tuple[str | EdgeType, Mapping[str, object]]]:
    return [*schema.nodes.items(), *schema.edges.items()]


def _named_splits(schema: GraphSchema) -> dict[str, tuple[str, ...]]:
    """Return the names of splits by type label, without types that have no splits."""
    found = {t: names for t, names in schema.splits.items() if names}
    return found | {type_label(t): names for t, names in schema.edge_splits.items() if names}


def _shown(feature: object) -> str:
    return "missing" if feature is None else str(feature)
