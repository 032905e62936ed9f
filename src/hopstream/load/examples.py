"""Loader of exported subgraphs, also as an iterable dataset for torch's ``DataLoader``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hopstream.arrays import IntArray
from hopstream.checks import Settings, check_choice, known_names, read_integer
from hopstream.errors import FormatError, UnknownNameError
from hopstream.load.batch import as_it_is
from hopstream.load.epochs import EpochLoader, Facts
from hopstream.load.example_reader import ExampleReader, Files, chosen_spec, example_paths, schema_of
from hopstream.load.load_settings import ConsumerSettings, OrderSettings
from hopstream.load.loader_arguments import takes
from hopstream.load.order import ExampleOrder
from hopstream.load.setup import import_pyg
from hopstream.tfgnn.graph_schema import AUXILIARY
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.spec import GraphSpec

Strings = Literal["text", "bytes", "drop"]
MAX_BATCH = 1 << 24


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleFiles(Settings):
    """Exported subgraphs.

    Attributes:
        files: One or several names of files, such as ``train.tfrecord@8`` or ``train-*.parquet``: TFRecord files of
            ``tf.Example``, plain or compressed with gzip, or Parquet files. Compressed files are read once to count
            their examples.
    """

    files: Files = field(kw_only=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleArguments(ConsumerSettings, OrderSettings, ExampleFiles):
    """Arguments of ``ExampleLoader``. A seed is a subgraph, and ``collate="numpy"`` gives ``GraphBatch``.

    Attributes:
        schema: A ``GraphSchema`` message or its path. None: ``train.tfrecord.pbtxt`` beside the files, or the only
            ``.pbtxt`` there.
        window: With ``shuffle``: size of the shuffle window in examples; it spans files that are adjacent in the
            shuffled order. For compressed and Parquet files, about four windows are kept in memory.
        seed_set: The node set whose first nodes are the seeds; None: the schema's ``info.root_set``.
        node_features: Node set to the names of features to read; None: all.
        edge_features: Edge set to the names of features to read; None: all.
        context_features: Names of context features to read; None: all.
        strings: Format of string features: ``text`` (lists of ``str``, nested as their shape), ``bytes`` (lists of
            ``bytes``), or ``drop``.
        num_components: Components of each graph.
        prefix: Prefix of every name in the examples.
    """

    batch_size: int = field(default=1, kw_only=False)
    schema: Any = None
    window: int = 1024
    seed_set: str | None = None
    node_features: Mapping[str, Sequence[str]] | None = None
    edge_features: Mapping[str, Sequence[str]] | None = None
    context_features: Sequence[str] | None = None
    strings: Strings = "text"
    num_components: int = 1
    prefix: str = ""

    def __post_init__(self) -> None:
        """Check every field."""
        self._read_integer("batch_size", 1, MAX_BATCH)
        super().__post_init__()
        self._read_integer("window", 1)
        self._read_integer("num_components", 1)
        check_choice("strings", self.strings, get_args(Strings))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphBatch:
    """Batch of exported subgraphs, as numpy arrays.

    Attributes:
        epoch: The batch's epoch.
        index: Number of the batch in the epoch, over all ranks.
        input_ids: int64[num_graphs], numbers of the examples, counted over all files.
        graphs: The concatenated graphs; indices of edges count nodes of each graph from 0.
        seed_set: The node set whose first nodes are the seeds, or None if unknown.
    """

    epoch: int
    index: int
    input_ids: IntArray
    graphs: GraphPieces
    seed_set: str | None


Convert = Callable[[GraphBatch], Any]


class ExampleMaker:
    """Maker of batches of exported subgraphs. Not thread-safe."""

    def __init__(self, opened: OpenExamples) -> None:
        """Make batches of open files."""
        self._reader, self._order, self._seed_set = opened.reader, opened.order, opened.seed_set
        self._convert = opened.convert
        self.stage = "idle"
        """Current step of the work, for messages about slow batches."""

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
    """Open files of examples, with the settings of their batches."""

    reader: ExampleReader
    order: ExampleOrder
    seed_set: str | None
    convert: Convert
    settings: ConsumerSettings

    def maker(self) -> ExampleMaker:
        """Make a maker of batches; each thread needs its own."""
        return ExampleMaker(self)


class ExampleLoader(EpochLoader):
    """Mini-batches of exported subgraphs, as PyG's ``HeteroData``.

    One iteration is one epoch, and the next iteration is the next epoch. Equal settings give bit-equal batches, for any
    number of threads and after a resume.
    """

    @takes(ExampleArguments)
    def __init__(self, arguments: ExampleArguments) -> None:
        """Open the files and check every setting against them.

        Raises:
            SettingsError: A setting cannot be met.
            UnknownNameError: The schema has no such set or feature.
            SchemaError: The schema contradicts itself.
            FormatError: A file is missing, damaged or of another format, or there is no schema.
            MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
        """
        opened = self._opened = open_examples(arguments)
        super().__init__(num_steps=opened.order.num_steps, new_maker=opened.maker, settings=opened.settings)

    @property
    def num_examples(self) -> int:
        """Number of examples in all files."""
        return self._opened.order.num_seeds

    @property
    def spec(self) -> GraphSpec:
        """The sets and features of batches."""
        return self._opened.reader.spec

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        opened = self._opened
        order = {name: getattr(opened.order.settings, name) for name in OrderSettings.field_names() if name != "rank"}
        return {"examples": opened.reader.fingerprint(), "window": opened.order.window, **order}

    def __repr__(self) -> str:
        """Return a description of the loader in one line."""
        order = self._opened.order
        return (
            f"ExampleLoader({order.num_seeds} examples in {len(order.file_sizes)} files, "
            f"batch_size={order.settings.batch_size}, {len(self)} batches on {order.settings.rank_text})"
        )


def open_examples(arguments: ExampleArguments) -> OpenExamples:
    """Open a loader's files and check its settings against them; raises the errors of ``ExampleLoader``."""
    paths = example_paths(arguments.files)
    schema = schema_of(arguments.schema, paths)
    spec = chosen_spec(
        GraphSpec.of_schema(schema), arguments.node_features, arguments.edge_features, arguments.context_features,
        has_strings=arguments.strings != "drop",
    )  # fmt: skip
    seed_set = _seed_set(arguments.seed_set, schema, spec)
    convert = _collator(arguments, spec)
    reader = ExampleReader(
        paths, spec, num_components=arguments.num_components, prefix=arguments.prefix, window=arguments.window
    )
    if not sum(reader.sizes):
        raise FormatError(f"{paths[0]}{' and the other files' if len(paths) > 1 else ''}: there are no examples")
    order = ExampleOrder(
        num_seeds=sum(reader.sizes), settings=OrderSettings.within(arguments), file_sizes=reader.sizes,
        window=arguments.window,
    )  # fmt: skip
    return OpenExamples(reader, order, seed_set, convert, ConsumerSettings.within(arguments))


def _seed_set(given: str | None, schema: Any, spec: GraphSpec) -> str | None:
    roots = list(schema.info.root_set)
    name = given if given is not None else roots[0] if len(roots) == 1 else None
    if name is not None and (name not in spec.node_sets or AUXILIARY.match(name)):
        known = [t for t in spec.node_sets if not AUXILIARY.match(t)]
        raise UnknownNameError(f"seed_set: node set {name!r} does not exist; {known_names(name, known)}")
    return name


def _collator(arguments: ExampleArguments, spec: GraphSpec) -> Convert:
    if arguments.collate == "numpy":
        return as_it_is
    examples = import_pyg("pyg_examples")
    examples.check_example_names(spec)
    if arguments.pin_memory:
        import_pyg("pyg").check_can_pin()
    return partial(examples.to_hetero_data, strings=arguments.strings, is_pinned=arguments.pin_memory)


MAX_PLACE = (1 << 63) - 1


class ExampleDataset(IterableDataset[Any]):
    """The batches of ``ExampleLoader`` for ``DataLoader(dataset, batch_size=None, num_workers=…)``.

    It is a :class:`torch.utils.data.IterableDataset`. Worker ``w`` of ``n`` makes batches ``w``, ``w + n``, …, and the
    ``DataLoader`` takes them from the workers in turn. So every batch comes once, in the order of ``ExampleLoader``.
    Ranks are options as of ``ExampleLoader``.

    Unlike in ``ExampleLoader``, the next iteration is not the next epoch by itself. Call ``set_epoch`` before each
    iteration; otherwise every iteration is the same epoch, in the same order.
    """

    @takes(ExampleArguments)
    def __init__(self, arguments: ExampleArguments) -> None:
        """Open the files and check every setting against them, once for all workers.

        Raises the errors of ``ExampleLoader``. ``num_threads`` has no effect.
        """
        self._opened: OpenExamples = open_examples(arguments)
        # In shared memory, so that running workers see the epoch of ``set_epoch``.
        self._place = torch.zeros(2, dtype=torch.int64)
        self._place.share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int, next_batch: int = 0) -> None:
        """Set the epoch of the next iterations and their first batch; must not be called during an iteration.

        Persistent workers (``persistent_workers=True``) see the change.

        Raises:
            SettingsError: An argument is no integer, or below 0.
        """
        place = [read_integer("epoch", epoch, 0, MAX_PLACE), read_integer("next_batch", next_batch, 0, MAX_PLACE)]
        self._place.copy_(torch.tensor(place))

    def __len__(self) -> int:
        """Return the number of batches of the next iteration, in all workers together."""
        return max(0, self._opened.order.num_steps - int(self._place[1]))

    def __iter__(self) -> Iterator[Any]:
        """Return this worker's batches of the epoch."""
        worker = get_worker_info()
        number, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        epoch, first = self._place.tolist()
        return self._batches(epoch, range(first + number, self._opened.order.num_steps, num_workers))

    def _batches(self, epoch: int, steps: range) -> Iterator[Any]:
        maker, transform = self._opened.maker(), self._opened.settings.transform
        for step in steps:
            batch = maker.make(epoch, step)
            yield batch if transform is None else transform(batch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Put the position into shared memory again, in copies that were not made by torch."""
        self.__dict__.update(state)
        self._place.share_memory_()  # type: ignore[no-untyped-call]
