"""Verifier of parts in DGL's files against the source graph and the part of each node.

The comparison continues after a difference. Nodes are read part by part, then edges and data in groups of parts.

[Cost] Memory: about 40 bytes per node of the graph, and the edges of one group of parts: up to ``max_edges``, or one
part. Each group reads the source once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.assign.owners import read_owners
from hopstream.compat.dgl.book import Ranges
from hopstream.compat.dgl.convert import our_names
from hopstream.compat.dgl.graph_files import PlainGraph
from hopstream.compat.dgl.graphs import EID, ETYPE, NID, NTYPE
from hopstream.compat.dgl.loading import keys_beside, read_part_graph
from hopstream.compat.dgl.part_config import PartConfig, label_of, read_config
from hopstream.compat.dgl.verifying_data import UNKNOWN, DataCheck, HeldEdges, HeldRows, compare_edges
from hopstream.errors import FormatError, HopstreamError, IdRangeError
from hopstream.preparation.audit.reference import Against, Reference, open_reference
from hopstream.preparation.audit.report import Findings, Kind, VerifyReport
from hopstream.schema import EdgeType
from hopstream.uris import local_path

MAX_EDGES = 1 << 22
MAX_FINDINGS = 100
MAX_PARTS_AT_ONCE = 64
"""Limit of parts per group; each part has two files open."""
OF_EDGES: tuple[Kind, ...] = ("edges", "ownership", "features")
"""Checks of edges that need their keys."""


def verify_part_files(
    part_config: str | Path, *, against: Against, owners: str | Path, max_edges: int = MAX_EDGES,
    max_findings: int = MAX_FINDINGS,
) -> VerifyReport:  # fmt: skip
    """Compare DGL's files of all parts with the graph and its owners; report all differences.

    The files give the keys of nodes and edges (``orig_id``, or ``orig_nids.dgl`` and ``orig_eids.dgl``). Without keys,
    comparisons by key are skipped, and the report says so.

    Args:
        part_config: The JSON file; the folders of all parts must be present.
        against: The graph: a chunked graph, which is not loaded, or another source of ``verify_dataset``.
        owners: A folder with the part of each node.
        max_edges: Limit of edges in memory at a time; one part is always read whole.
        max_findings: Limit of listed findings; the rest are counted.

    Raises:
        FormatError: The graph, or a file of owners, cannot be read.
        SchemaError: A file of owners does not have one integer per node.
        SettingsError: The owners have another number of parts.
        IdRangeError: A file of owners names a part that does not exist.
    """
    findings, path = Findings(max_findings), local_path(part_config)
    findings.checked("manifest")
    try:
        config = read_config(path)
    except HopstreamError as error:
        findings.add("manifest", path.name, str(error).removeprefix(f"{path} "))
        return findings.report()
    reference = open_reference(against)
    found, _ = read_owners(owners, reference.num_nodes, config.num_parts)
    _Verification(config, reference, found, findings).run(max_edges)
    return findings.report()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Local:
    """Graph of a part, with numbers within types."""

    part: int
    where: str
    graph: PlainGraph
    node_types: IntArray
    node_numbers: IntArray
    edge_types: IntArray
    edge_numbers: IntArray


@dataclass(slots=True, eq=False)
class _Verification:
    config: PartConfig
    reference: Reference
    owners: Mapping[str, NDArray[np.int32]]
    findings: Findings
    names: dict[Any, Any] = field(default_factory=dict)
    """Type in the files to type in the source, for types with the same number of rows in both."""
    keys: dict[str, IntArray] = field(default_factory=dict)
    """Node type of the files to int64[num_nodes], the key of each number of the type."""
    num_edges: dict[int, int] = field(default_factory=dict)
    """Part with a readable graph to its number of edges."""

    def run(self, max_edges: int) -> None:
        config = self.config
        self._match_types(config.nodes, self.reference.num_nodes)
        self._match_types(config.edges, self.reference.num_edges)
        self.keys = {
            t: np.full(config.nodes.typed[t][-1], UNKNOWN, np.int64) for t in config.nodes.ids if t in self.names
        }
        for part in range(config.num_parts):
            local = self._open(part, is_first=True)
            if local is not None:
                self.num_edges[part] = len(local.graph.src)
                self._take_keys(local)
        for ntype in self.keys:
            self._check_keys(ntype)
        for parts in self._groups(max_edges):
            opened = [local for local in map(self._open, parts) if local is not None]
            node_keys = {local.part: self._local_keys(local) for local in opened}
            for local in opened:
                self._check_around(local, node_keys[local.part])
            data = DataCheck(config, self.reference, self.findings, [local.part for local in opened])
            for of, name in self.names.items():
                if isinstance(of, str):
                    data.check(of, name, [self._node_rows(of, local.part) for local in opened])
                    continue
                held = [self._held_edges(of, local, node_keys[local.part]) for local in opened]
                known = [edges for edges in held if edges is not None]
                src_owner = None if self.config.halo_hops else self.owners[name[0]]
                compare_edges(self.reference, name, known, (src_owner, self.owners[name[2]]), self.findings)
                rows = [self._edge_rows(of, local, edges) for local, edges in zip(opened, held, strict=True)]
                data.check(of, name, rows)
            data.check_labels(self.names)

    def _match_types(self, ranges: Ranges, num_rows: Mapping[Any, int]) -> None:
        """Match each type with the source; report types that one side lacks, or with other numbers of rows."""
        names: dict[Any, Any] = {}
        for called in our_names(self.config.nodes.ids, self.config.edges.ids):
            names |= called
        for of, offsets in ranges.typed.items():
            name = of if of in num_rows else names[of]
            label, got, want = label_of(of), int(offsets[-1]), num_rows.get(name)
            if got == want:
                self.names[of] = name
                continue
            what = "is a type of the parts only" if want is None else f"has {got} rows; the source has {want}"
            self.findings.add("schema", label, what)
            if want is not None:
                why = f"{label} has {got} rows and the source {want}, so they are not compared"
                self.findings.skip("features", why)
        for name in num_rows:
            self.findings.checked("schema")
            if name not in ranges.ids and name not in {names[of] for of in ranges.ids}:
                self.findings.add("schema", label_of(name), "is a type of the source only")

    def _open(self, part: int, *, is_first: bool = False) -> _Local | None:
        """Read the graph of a part; the first call reports an unreadable one."""
        if not is_first and part not in self.num_edges:
            return None
        where = self.config.parts[part].get("part_graph", f"part-{part}")
        self.findings.checked("files", int(is_first))
        try:
            graph = read_part_graph(self.config, part)
            node_types, node_numbers = self.config.nodes.per_type(graph.ndata[NID].astype(np.int64))
            edge_types, edge_numbers = self.config.edges.per_type(graph.edata[EID].astype(np.int64))
        except (FormatError, IdRangeError) as error:
            self.findings.add("files", where, self._told(error, where))
            return None
        return _Local(
            part=part, where=where, graph=graph, node_types=node_types, node_numbers=node_numbers,
            edge_types=edge_types, edge_numbers=edge_numbers,
        )  # fmt: skip

    def _told(self, error: HopstreamError, where: str) -> str:
        return str(error).removeprefix(f"{self.config.path.parent / where} ")

    def _take_keys(self, local: _Local) -> None:
        """Record the key of each node that a part owns."""
        inner, nodes = local.graph.ndata["inner_node"] != 0, self.config.nodes
        for ntype, known in self.keys.items():
            places = np.flatnonzero(inner & (local.node_types == nodes.ids[ntype]))
            keys = self._keys_of_rows(local, ntype, local.node_numbers[places] - nodes.typed[ntype][local.part], places)
            if keys is not None:
                known[local.node_numbers[places]] = self._in_range(keys, len(known), f"{local.where} {ntype}")

    def _keys_of_rows(
        self, local: _Local, of: str | EdgeType, rows: IntArray, places: IntArray
    ) -> IntArray | None:  # fmt: skip
        """Return keys of a part's own items of a type: from its graph, else a file beside it, else None.

        ``places`` are indices into the part's graph, ``rows`` the offsets among the part's own items.
        """
        data = local.graph.ndata if isinstance(of, str) else local.graph.edata
        of_graph = data["orig_id"][places].astype(np.int64) if "orig_id" in data else None
        if not len(rows):
            return np.empty(0, np.int64)
        where = str(Path(local.where).with_name("orig_nids.dgl" if isinstance(of, str) else "orig_eids.dgl"))
        try:
            beside = keys_beside(self.config, local.part, of)
        except FormatError as error:
            self.findings.add("files", where, self._told(error, where))
            return of_graph
        if beside is None:
            if of_graph is None:
                why = f"{local.where} has no orig_id, and {where} is missing: the keys of {label_of(of)} are unknown"
                self.findings.skip(("nodes", "features") if isinstance(of, str) else OF_EDGES, why)
            return of_graph
        is_own = (rows >= 0) & (rows < len(beside))
        if of_graph is not None:
            own = rows[is_own]
            wrong = own[beside[own] != of_graph[is_own]]
            told = (f"row {row} ({beside[row]})" for row in wrong)
            self.findings.add("files", where, f"has other keys of {label_of(of)} than the graph", len(wrong), told)
            return of_graph
        if not is_own.all():
            told = (f"row {row}" for row in rows[~is_own][:9])
            self.findings.add("files", where, f"lacks keys of {label_of(of)} that the graph has", sum(~is_own), told)
            return None
        return beside[rows]

    def _in_range(self, keys: IntArray, limit: int, where: str) -> IntArray:
        """Replace keys outside the range by ``UNKNOWN``, and report them."""
        is_wrong = (keys < 0) | (keys >= limit)
        self.findings.checked("ranges", len(keys))
        self.findings.add(
            "ranges", where, f"has keys outside 0..{limit - 1}", int(is_wrong.sum()), map(str, keys[is_wrong][:9])
        )
        return np.where(is_wrong, UNKNOWN, keys)

    def _check_keys(self, ntype: str) -> None:
        """Check that every node is in exactly one part, the one in the folder of owners."""
        keys, owner, findings = self.keys[ntype], self.owners[self.names[ntype]], self.findings
        parts = np.repeat(np.arange(self.config.num_parts), np.diff(self.config.nodes.typed[ntype]))
        places = np.flatnonzero(keys != UNKNOWN)
        found, parts_of_found = keys[places], parts[places]
        findings.checked("nodes", len(found))
        wrong = np.flatnonzero(owner[found] != parts_of_found)
        told = (f"key {found[row]} (part {parts_of_found[row]}, not {owner[found[row]]})" for row in wrong)
        findings.add("nodes", ntype, "is in another part than in the folder of owners", len(wrong), told)
        times = np.bincount(found, minlength=len(owner))
        doubled = np.flatnonzero(times > 1)
        findings.add("nodes", ntype, "is held more than once", len(doubled), (f"key {key}" for key in doubled))
        is_known = np.zeros(self.config.num_parts, np.bool_)  # parts without known keys report no missing nodes
        is_known[parts_of_found] = True
        missing = np.flatnonzero((times == 0) & is_known[owner])
        findings.add("nodes", ntype, "is held by no part", len(missing), (f"key {key}" for key in missing))

    def _groups(self, max_edges: int) -> Iterator[list[int]]:
        """Yield groups of parts that are compared together."""
        group: list[int] = []
        num_edges = 0
        for part, of_part in self.num_edges.items():
            if group and (num_edges + of_part > max_edges or len(group) == MAX_PARTS_AT_ONCE):
                yield group
                group, num_edges = [], 0
            group.append(part)
            num_edges += of_part
        if group:
            yield group

    def _check_around(self, local: _Local, node_keys: IntArray) -> None:
        """Compare the fields of own and halo nodes and edges with the values that their numbers imply."""
        ndata, edata, findings = local.graph.ndata, local.graph.edata, self.findings
        node_parts = np.searchsorted(self.config.nodes.all_types[1:], ndata[NID], side="right")
        edge_parts = np.searchsorted(self.config.edges.all_types[1:], edata[EID], side="right")
        for name, what, said, wanted in (
            ("inner_node", "a node", ndata["inner_node"], ndata["inner_node"] != 0),
            ("inner_edge", "an edge", edata["inner_edge"], edata["inner_edge"] != 0),
            ("part_id", "a node", ndata.get("part_id"), node_parts),
            (NTYPE, "a node", ndata.get(NTYPE), local.node_types),
            ("orig_id", "a node", ndata.get("orig_id"), node_keys),
            (ETYPE, "an edge", edata.get(ETYPE), local.edge_types),
            ("the part", "an edge", node_parts[local.graph.dst], edge_parts),
        ):
            if said is None:
                continue
            got = said if said.ndim == 1 else np.full(len(said), UNKNOWN)
            findings.checked("halo", len(got))
            wrong = np.flatnonzero((got != wanted) & (wanted != UNKNOWN))
            told = (f"{what.split()[1]} {place} ({got[place]}, not {wanted[place]})" for place in wrong)
            findings.add("halo", local.where, f"{name} of {what} is wrong", len(wrong), told)

    def _local_keys(self, local: _Local) -> IntArray:
        """Return int64[n], the key of each node of a part's graph."""
        found = np.full(len(local.node_types), UNKNOWN, np.int64)
        for ntype, keys in self.keys.items():
            mine = local.node_types == self.config.nodes.ids[ntype]
            found[mine] = keys[local.node_numbers[mine]]
        return found

    def _node_rows(self, ntype: str, part: int) -> HeldRows:
        first, stop = self.config.nodes.typed[ntype][part : part + 2]
        return HeldRows.of(part, self.keys[ntype][first:stop])

    def _held_edges(self, etype: EdgeType, local: _Local, node_keys: IntArray) -> HeldEdges | None:
        """Return the edges of a type in a part's graph; None if their keys are unknown."""
        findings, edata, part = self.findings, local.graph.edata, local.part
        is_mine = local.edge_types == self.config.edges.ids[etype]
        is_inner = is_mine & (edata["inner_edge"] != 0)
        first, stop = self.config.edges.typed[etype][part : part + 2].tolist()
        numbers = np.sort(local.edge_numbers[is_inner])
        label = f"{local.where} {label_of(etype)}"
        if self.config.halo_hops and not np.array_equal(numbers, np.arange(first, stop)):
            missing = np.setdiff1d(np.arange(first, stop), numbers)
            what = f"does not hold edges {first}..{stop - 1} of its own, as the JSON file says"
            findings.add("edges", label, what, max(1, len(missing)), (f"number {number}" for number in missing))
        has_keys = "orig_id" in edata
        places = np.flatnonzero(is_mine if has_keys else is_inner)
        rows = local.edge_numbers[places] - first
        keys = self._keys_of_rows(local, etype, rows, places)
        if keys is None:
            return None
        keys = self._in_range(keys, self.reference.num_edges[self.names[etype]], label)
        ends = []
        for what, end, ntype in (("source", local.graph.src, etype[0]), ("destination", local.graph.dst, etype[2])):
            is_other = local.node_types[end[places]] != self.config.nodes.ids[ntype]
            told = (f"edge key {keys[place]}" for place in np.flatnonzero(is_other))
            findings.add("edges", label, f"has a {what} of another type", int(is_other.sum()), told)
            ends.append(np.where(is_other, UNKNOWN, node_keys[end[places]]))
        order = np.argsort(keys, kind="stable")
        order = order[keys[order] != UNKNOWN]
        return HeldEdges(
            part=part, where=label, keys=keys[order], src_keys=ends[0][order], dst_keys=ends[1][order],
            is_inner=is_inner[places][order], rows=rows[order],
        )  # fmt: skip

    def _edge_rows(self, etype: EdgeType, local: _Local, held: HeldEdges | None) -> HeldRows:
        if held is None:
            return HeldRows(part=local.part, keys=np.empty(0, np.int64), rows=np.empty(0, np.int64))
        num_rows = np.diff(self.config.edges.typed[etype])[local.part]
        is_row = held.is_inner & (held.rows >= 0) & (held.rows < num_rows)
        return HeldRows(part=local.part, keys=held.keys[is_row], rows=held.rows[is_row])
