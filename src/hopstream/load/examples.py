"""How does a training script get mini-batches of subgraphs that were sampled and exported before?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np

from hopstream.arrays import IntArray
from hopstream.checks import check_choice, known_names
from hopstream.errors import FormatError, MissingDependencyError, SettingsError, UnknownNameError
from hopstream.load.epochs import EpochLoader, Transform
from hopstream.load.example_order import ExampleOrder
from hopstream.load.example_reader import ExampleReader, Files, chosen_spec, example_paths, schema_of
from hopstream.load.options import MAX_RNG_SEED, read_flag, read_integer, read_rank, refuse_unknown
from hopstream.load.order import Remainder
from hopstream.load.place import Facts
from hopstream.load.setup import Collate
from hopstream.load.workers import WorkerSettings
from hopstream.tfgnn.graph_schema import AUXILIARY
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.spec import GraphSpec

Strings = Literal["text", "bytes", "drop"]
MAX_BATCH = 1 << 24


class ExampleOptions(TypedDict, total=False):
    """The settings of ``ExampleLoader`` beside files and batch size; it says what they mean."""

    schema: Any
    shuffle: bool
    window: int
    drop_last: bool
    seed_set: str | None
    node_features: Mapping[str, Sequence[str]] | None
    edge_features: Mapping[str, Sequence[str]] | None
    context_features: Sequence[str] | None
    strings: Strings
    num_components: int
    prefix: str
    collate: Collate
    pin_memory: bool
    transform: Transform | None
    num_threads: int
    prefetch: int
    timeout_s: float
    rank: int | None
    world_size: int
    remainder: Remainder
    rng_seed: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphBatch:
    """Some exported subgraphs, as numpy arrays.

    Attributes:
        epoch: The epoch that the batch is part of.
        index: Its number in the epoch, over all ranks.
        input_ids: int64[num_graphs], the numbers of the examples, counted over all files.
        graphs: The graphs, one after the other; indices of edges are those of each graph.
        seed_set: The node set whose first nodes are the seeds, or None where that is not known.
    """

    epoch: int
    index: int
    input_ids: IntArray
    graphs: GraphPieces
    seed_set: str | None


Convert = Callable[[GraphBatch], Any]


class ExampleMaker:
    """Makes batches of exported subgraphs. One thread uses one maker."""

    def __init__(self, reader: ExampleReader, order: ExampleOrder, seed_set: str | None, convert: Convert) -> None:
        """Bring together what makes a batch."""
        self._reader, self._order, self._seed_set, self._convert = reader, order, seed_set, convert
        self.stage = "idle"
        """What the maker is doing, for messages about batches that take too long."""

    def make(self, epoch: int, step: int) -> Any:
        """Make one batch; equal arguments give equal batches."""
        self.stage = "reading examples"
        span = self._order.span(step)
        numbers = self._order.positions(epoch, span)
        graphs = self._reader.graphs(numbers)
        if self._seed_set is not None and int(graphs.node_sets[self._seed_set].sizes.min(initial=1)) < 1:
            at = int(np.argmin(graphs.node_sets[self._seed_set].sizes))
            raise FormatError(f"component {at} of batch {span.index} has no {self._seed_set}, so it has no seed")
        self.stage = "collating"
        return self._convert(
            GraphBatch(epoch=epoch, index=span.index, input_ids=numbers, graphs=graphs, seed_set=self._seed_set)
        )


@dataclass(frozen=True, slots=True, eq=False)
class OpenExamples:
    """Files that are open, and what decides over the batches of their examples."""

    reader: ExampleReader
    order: ExampleOrder
    seed_set: str | None
    convert: Convert
    transform: Transform | None
    workers: WorkerSettings

    def maker(self) -> ExampleMaker:
        """What makes batches; one thread uses one."""
        return ExampleMaker(self.reader, self.order, self.seed_set, self.convert)


class ExampleLoader(EpochLoader):
    """Mini-batches of exported subgraphs, as PyG's ``HeteroData``.

    One iteration is one epoch, and the next iteration is the next epoch. Equal settings give bit-equal batches,
    whatever the number of threads and after a resume.
    """

    def __init__(self, files: Files, batch_size: int = 1, **options: Unpack[ExampleOptions]) -> None:
        """Open the files and check every setting against them.

        Args:
            files: TFRecord files of ``tf.Example``, plain or compressed with gzip, or Parquet files: a name such as
                ``train.tfrecord@8`` or ``train-*.parquet``, or several. Compressed files are read once to count.
            batch_size: Subgraphs per batch and rank.
            **options: ``schema``: a ``GraphSchema`` message or its path; None: the one beside the files,
                ``train.tfrecord.pbtxt``, or the only ``.pbtxt`` there.
                ``shuffle``: a new order of files and examples each epoch.
                ``window``: examples that are mixed with each other, of files that follow each other in the new order;
                of compressed and Parquet files, some four times as many are kept in memory.
                ``drop_last``, ``rank``, ``world_size``, ``remainder``, ``rng_seed``, ``transform``, ``num_threads``,
                ``prefetch``, ``timeout_s``, ``pin_memory``, ``collate``: as for ``NeighborLoader``; ``numpy`` gives
                ``GraphBatch``.
                ``seed_set``: the node set whose first nodes are the seeds; None: the schema's ``info.root_set``.
                ``node_features``, ``edge_features``: set to the names that are read; None: all.
                ``context_features``: names; None: all.
                ``strings``: ``text`` (lists of ``str``, as deep as their shape), ``bytes`` (as they are), or ``drop``.
                ``num_components``: components of each graph, 1 unless told.
                ``prefix``: what stands before every name in the examples.

        Raises:
            SettingsError: A setting that cannot be met.
            UnknownNameError: The schema has no such set or feature.
            SchemaError: The schema contradicts itself.
            FormatError: A file is missing, damaged or of another kind, or there is no schema.
            MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
        """
        self._opened = open_examples(files, batch_size, options)
        super().__init__(
            num_steps=self._opened.order.num_steps, new_maker=self._opened.maker, transform=self._opened.transform,
            workers=self._opened.workers,
        )  # fmt: skip

    @property
    def num_examples(self) -> int:
        """Examples of all files."""
        return self._opened.order.num_seeds

    @property
    def spec(self) -> GraphSpec:
        """The sets and features that batches bring."""
        return self._opened.reader.spec

    def facts(self) -> Facts:
        """What decides over the batches: a saved state is refused where one of them differs."""
        order = self._opened.order
        return {
            "examples": self._opened.reader.fingerprint(),
            "batch_size": order.batch_size,
            "shuffle": order.is_shuffled,
            "window": order.window,
            "drop_last": order.drop_last,
            "world_size": order.world_size,
            "remainder": order.remainder,
            "rng_seed": order.rng_seed,
        }

    def __repr__(self) -> str:
        """The loader in one line."""
        order = self._opened.order
        return (
            f"ExampleLoader({order.num_seeds} examples in {len(order.file_sizes)} files, "
            f"batch_size={order.batch_size}, {len(self)} batches on rank {order.rank} of {order.world_size})"
        )


def open_examples(files: Files, batch_size: int, options: ExampleOptions) -> OpenExamples:
    """Check the settings of a loader and open its files; ``ExampleLoader`` says what they mean and what is raised."""
    refuse_unknown(ExampleLoader, options, ExampleOptions.__annotations__)
    workers = WorkerSettings(
        num_threads=read_integer("num_threads", options.get("num_threads", 1), 0),
        prefetch=read_integer("prefetch", options.get("prefetch", 2), 0),
        timeout_s=options.get("timeout_s", 120.0),
    )
    transform = options.get("transform")
    if transform is not None and not callable(transform):
        raise SettingsError(f"transform is {transform!r}; it must be a function that takes a batch, or None")
    strings = options.get("strings", "text")
    check_choice("strings", strings, get_args(Strings))
    window = read_integer("window", options.get("window", 1024), 1)
    rank, world_size = read_rank(options.get("rank"), options.get("world_size", 1))
    paths = example_paths(files)
    schema = schema_of(options.get("schema"), paths)
    spec = chosen_spec(
        GraphSpec.of_schema(schema), options.get("node_features"), options.get("edge_features"),
        options.get("context_features"), has_strings=strings != "drop",
    )  # fmt: skip
    seed_set = _seed_set(options.get("seed_set"), schema, spec)
    convert = _collator(options, spec, strings)
    reader = ExampleReader(
        paths, spec, num_components=read_integer("num_components", options.get("num_components", 1), 1),
        prefix=options.get("prefix", ""), window=window,
    )  # fmt: skip
    if not sum(reader.sizes):
        raise FormatError(f"{paths[0]}{' and the other files' if len(paths) > 1 else ''}: there are no examples")
    order = ExampleOrder(
        num_seeds=sum(reader.sizes), batch_size=read_integer("batch_size", batch_size, 1, MAX_BATCH),
        is_shuffled=read_flag("shuffle", options.get("shuffle", False)),
        drop_last=read_flag("drop_last", options.get("drop_last", False)),
        rng_seed=read_integer("rng_seed", options.get("rng_seed", 0), 0, MAX_RNG_SEED), rank=rank,
        world_size=world_size, remainder=options.get("remainder", "spread"), file_sizes=reader.sizes, window=window,
    )  # fmt: skip
    return OpenExamples(reader, order, seed_set, convert, transform, workers)


def _seed_set(given: str | None, schema: Any, spec: GraphSpec) -> str | None:
    roots = list(schema.info.root_set)
    name = given if given is not None else roots[0] if len(roots) == 1 else None
    if name is not None and (name not in spec.node_sets or AUXILIARY.match(name)):
        known = [t for t in spec.node_sets if not AUXILIARY.match(t)]
        raise UnknownNameError(f"seed_set: there is no node set {name!r}; {known_names(name, known)}")
    return name


def _collator(options: ExampleOptions, spec: GraphSpec, strings: Strings) -> Convert:
    collate, pin_memory = options.get("collate", "pyg"), read_flag("pin_memory", options.get("pin_memory", False))
    check_choice("collate", collate, get_args(Collate))
    if collate == "numpy":
        if pin_memory:
            raise SettingsError("pin_memory=True pins torch tensors; use it with collate='pyg'")
        return _as_it_is
    examples = _import_pyg()
    examples.check_example_names(spec)
    if pin_memory:
        from hopstream.load.pyg import check_can_pin

        check_can_pin()
    return partial(examples.to_hetero_data, strings=strings, is_pinned=pin_memory)


def _import_pyg() -> ModuleType:
    try:
        from hopstream.load import pyg_examples
    except ImportError as error:
        raise MissingDependencyError(
            f"collate='pyg' needs torch and torch_geometric ({error}); pip install 'hopstream[pyg]', or use "
            "collate='numpy'"
        ) from error
    return pyg_examples


def _as_it_is(batch: GraphBatch) -> GraphBatch:
    return batch
