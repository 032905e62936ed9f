"""Exports the subgraphs of many seeds to files, and resumes an interrupted export.

Each shard is a task of a job and appears by an atomic rename. The schema beside the shards is written last: if it
exists, the export is complete.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from hopstream.arrays import IntArray, write_text
from hopstream.engine import Task, kind_of, open_engine
from hopstream.engine.atomic_folder import WorkFolder, errors_named, open_work
from hopstream.engine.folder_job import INPUT_ERRORS, close_folder, write_spec
from hopstream.engine.job import Job, digest_of, job_digest
from hopstream.engine.machine import watched
from hopstream.engine.settings import Allotment, Needs, Progress, allot, no_progress
from hopstream.errors import NoRoomError, SettingsError
from hopstream.export.export_folder import PARTIAL, REPEATS, SEEDS, STAGES, VALUES, ExportPlan, write_shard
from hopstream.export.plan import starts_from_links
from hopstream.export.samples import SampleMaker, SeedSampling, schema_of_samples, sets_without_ids
from hopstream.export.seeds import (
    LINK_COLUMNS,
    NODE_COLUMNS,
    LinkValues,
    NodeIds,
    SeedTable,
    array_batches,
    digest_of_seeds,
    read_seeds,
    repeats_of,
    split_seeds,
    write_numbers,
    write_seeds,
    written_values,
)
from hopstream.export.settings import SEEDS_PER_SHARD, USUAL_SHARDS, ExportOptions, ExportReport, ExportSettings
from hopstream.export.source import ExportSource, located_source, open_source
from hopstream.ingest.source_paths import check_apart
from hopstream.ingest.tables import TableSettings
from hopstream.places.paths import AnyPath, path_of, put_file, uri_of
from hopstream.store.contract import Store
from hopstream.tfgnn.graph_schema import message_text, names_tables, schema_message
from hopstream.tfgnn.sampling_spec import parse_spec, spec_name, spec_text, uniform_by_default
from hopstream.tfgnn.tfrecord import output_name, shard_paths
from hopstream.uris import is_uri, local_path

logger = logging.getLogger(__name__)
FORMAT = 4
"""Version of the hidden work folder; a folder of another version is not resumed."""
BEGUN = "begun"
PROCESS_BYTES, THREAD_BYTES, SEED_BYTES = 200 << 20, 64 << 20, 64
"""Memory per process, for libraries and compiled kernels; per thread, which handles blocks of 8 to 16 MB; and per given
seed, while the first process counts repeats."""
LOOKUP_BYTES = 128
"""Memory per seed that is looked up in one pass."""
SUFFIXES = {".parquet": "parquet", ".pq": "parquet"}
"""Suffix of file names to format."""
Seeds = str | Path | Sequence[int] | Sequence[str] | IntArray | None


def _allotted(settings: ExportSettings, num_seeds: int) -> Allotment:
    """Allot memory and workers: first for counting the given seeds, then for sampling and writing."""
    worker = PROCESS_BYTES + settings.num_threads * THREAD_BYTES
    needs = (
        Needs.of_one(PROCESS_BYTES + num_seeds * SEED_BYTES, f"{num_seeds} seeds need"),
        Needs(alone_bytes=worker, parent_bytes=PROCESS_BYTES, worker_bytes=worker),
    )
    return allot(settings.memory, settings, needs)


def export_subgraphs(  # noqa: PLR0913  source, spec, output, seeds, settings and callbacks
    source: str | Path, spec: str | Path | Any, out: str | Path, *, seeds: Seeds = None,
    settings: ExportSettings | None = None, overwrite: bool = False, progress: Progress | None = None,
    on_plan: Callable[[ExportPlan, int], None] | None = None, **options: Unpack[ExportOptions],
) -> ExportReport:  # fmt: skip
    """Sample one subgraph per seed, and write them as ``tf.Example`` messages or as rows of Parquet.

    The files are equal, byte for byte, for any number of workers and threads, any engine, and any partitioning of the
    dataset. If the process is ended, the same call resumes the work.

    Args:
        source: The folder of a dataset, a ``cluster.json``, or addresses of servers, as for ``open_store``; or the
            ``.pbtxt`` of a unigraph or its folder, which is converted to a dataset in the export's hidden folder.
        spec: A ``SamplingSpec``: a file, its text, or a message.
        out: Common beginning of the files' paths, such as ``samples/train.tfrecord``, or a URI, which needs
            ``settings.work_dir``: each shard is copied there when it is complete. The suffix ``@16`` or
            ``-?????-of-00016`` asks for 16 files, which are named ``train.tfrecord-00003-of-00016`` and so on. The
            schema is ``train.tfrecord.pbtxt``.
        seeds: A table (CSV, Parquet, TFRecord of tf.Example or ``.npy``; one file, ``name@N`` or a pattern) or an array
            of raw ids, ``[n, 2]`` for links. Further columns of a table of links are written to the readout. A seed
            that occurs several times gets as many subgraphs, drawn independently. None: the nodes of
            ``settings.split``, or all nodes of the node set.
        settings: Settings of the export; by default ``ExportSettings()``.
        overwrite: Replace an existing export of this name.
        progress: Called as ``progress("export", done, total)`` in seeds.
        on_plan: Called once before writing starts, with the plan and the number of shards that an earlier call wrote.
        **options: Fields of ``ExportSettings``; they override ``settings``.

    Returns:
        Files, counts and times.

    Raises:
        SettingsError: A setting is out of range or contradicts another one, the dataset does not hold what the spec
            needs, or an export of this name exists.
        FormatError: A file is missing or cannot be read.
        SchemaError: The spec contradicts itself or the graph, or a table lacks a column.
        IdRangeError: A seed is not a node; the message names table, row and id.
        UnknownNameError: A setting names an unknown type, feature or split.
        StateError: Another process writes an export of this name.
        StoreError: A server failed.
        OSError: The system failed, for example because the disk is full; the next call resumes the work.
    """
    settings = replace(settings or ExportSettings(), **options)
    located_source(source)
    place, settings = _place_of(out, settings)
    text = spec_text(spec)
    tables = TableSettings(on_dangling=settings.on_dangling, data_path=settings.data_path)
    if isinstance(seeds, str | Path):
        path_of(seeds)
    here, name = (place, "out") if isinstance(place, Path) else (_work_dir(place, settings) / place.name, "work_dir")
    with errors_named(here), open_source(source, tables) as opened, _open_place(here, name) as work:
        if "://" not in opened.located:
            check_apart(here, {"the source": str(source), "data_path": settings.data_path or str(source)}, name)
        return ExportJob(
            work=work, place=place, source=opened, spec=text, spec_name=spec_name(spec), seeds=seeds, settings=settings,
            overwrite=overwrite, progress=progress or no_progress, on_plan=on_plan,
        ).run()  # fmt: skip


def _work_dir(place: AnyPath, settings: ExportSettings) -> Path:
    """Return the folder for the unfinished work of an export to a URI."""
    if settings.work_dir is None:
        raise SettingsError(
            f"out is {place}, at a URI; give work_dir too, a folder of this machine for unfinished work and for each "
            "shard until it is copied"
        )
    return local_path(settings.work_dir).absolute()


@contextmanager
def _open_place(place: Path, name: str) -> Iterator[WorkFolder]:
    """Open the work folder beside the schema of an export.

    Raises:
        SettingsError: No folder can be created there.
    """
    with ExitStack() as opened:
        try:
            work = opened.enter_context(open_work(place.with_name(f"{place.name}.pbtxt")))
        except (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError) as error:
            shown = place if name == "out" else place.parent
            raise SettingsError(
                f"{name} is {shown}, which cannot be written ({error.strerror}); give a path in a writable folder"
            ) from error
        yield work


def _place_of(out: str | Path, settings: ExportSettings) -> tuple[AnyPath, ExportSettings]:
    """Split ``out`` into the stem of paths and the number of shards.

    The result is the stem, and the settings with that number.
    """
    path = path_of(str(out).replace("-?????-of-", "@") if is_uri(str(out)) else out)  # ? begins a URI's query
    if settings.work_dir is not None and isinstance(path, Path):
        raise SettingsError(f"work_dir is given, but out is {out}, on this machine; leave work_dir out")
    stem, num_shards = output_name(str(path))
    place = path.with_name(Path(stem).name) if path.name else path
    if not place.name or place.is_dir():
        raise SettingsError(f"out is {out}, a folder; give the start of file names, such as {out}/samples")
    _check_suffix(stem, settings.file_format)
    if num_shards is None:
        return place.absolute(), settings
    if settings.one_file:
        raise SettingsError(f"out is {out}, which means {num_shards} files, but one_file is set; use only one of them")
    if settings.num_shards not in (None, num_shards):
        raise SettingsError(f"out is {out}, but num_shards is {settings.num_shards}; use only one of them")
    return place.absolute(), replace(settings, num_shards=num_shards)


def _resolved(path: str | AnyPath) -> AnyPath:
    return Path(os.path.realpath(path)) if isinstance(path, str | Path) else path


def _check_suffix(stem: str, file_format: str) -> None:
    """Refuse a name whose suffix contradicts the file format."""
    suffix = Path(stem).suffix
    said = SUFFIXES.get(suffix, file_format)
    if said != file_format:
        raise SettingsError(
            f"out is {stem}, which ends in {suffix}, and file_format is {file_format!r}; give file_format={said!r} or "
            "another name"
        )


@dataclass(slots=True, kw_only=True)
class ExportJob:
    """Job of one call of ``export_subgraphs``."""

    work: WorkFolder
    place: AnyPath
    source: ExportSource
    spec: str
    spec_name: str
    seeds: Seeds
    settings: ExportSettings
    overwrite: bool
    progress: Progress
    on_plan: Callable[[ExportPlan, int], None] | None
    table: SeedTable | None = None

    def run(self) -> ExportReport:
        """Write everything, the schema last."""
        sampling = self._sampling()
        plan = sampling.plan_over(self.source.schema, self.spec_name)
        self.source.check_plan(plan)
        schema_of_samples(sampling, self.source.schema)
        uniform = uniform_by_default(parse_spec(self.spec), schema_message(self.source.schema))
        if uniform:
            logger.warning(
                "ops without a strategy on edge sets without weights sample with RANDOM_UNIFORM: %s",
                ", ".join(uniform),
            )
        without = sets_without_ids(plan, self.source.schema) if sampling.node_ids else []
        if without:
            told = ", ".join(without)
            logger.warning(
                "node_ids: no #id is written for %s, because the graph has no feature of their raw ids", told
            )
        if self.source.store is not None:
            SampleMaker(self.source.store, sampling)
        self._check_seeds(starts_from_links(plan))
        self._check_inputs()
        digest = self._digest(sampling, starts_from_links(plan))
        finished = self._finished(digest)
        if finished is not None:
            return finished
        self._check_place(digest)
        try:
            with self.source.opened(self.work, plan, self.settings, self.progress) as (located, store):
                return self._export(located, store, sampling, digest)
        except NoRoomError:
            raise
        except INPUT_ERRORS:
            self._clear(digest)
            raise

    def _sampling(self) -> SeedSampling:
        """Build the sampling of each seed.

        Labels of links are not part of it, because they are columns of the table of seeds.
        """
        settings = self.settings
        is_linked = parse_spec(self.spec).WhichOneof("seed_type") != "seed_op"
        return SeedSampling(
            spec=self.spec, rng_seed=settings.rng_seed, leave_out=settings.leave_out, id_feature=settings.id_feature,
            link_set=settings.link_set or self.source.link_set, subgraph_type=settings.subgraph_type,
            readout=settings.readout, labels=() if is_linked else settings.labels, seed_ids=settings.seed_ids,
            node_ids=settings.node_ids, declared_ids=self.source.declared_ids,
        )  # fmt: skip

    def _export(self, located: str, store: Store, sampling: SeedSampling, digest: str) -> ExportReport:
        """Write all shards, then the schema."""
        maker = SampleMaker(store, sampling)
        num_before = self.job_work.num_done(digest)
        settings = self.settings
        work, folder = _allotted(settings, self._num_given()), self.job_work.job_root(digest)
        with watched():
            with open_engine("local", num_workers=0) as engine:  # workers start after the seeds are found
                self.job_work.resume(digest, engine)
            try:
                plan, work = self._planned(folder, located, store, sampling, maker, work)
                if self.on_plan is not None:
                    self.on_plan(plan, num_before)
                num_workers, options = work.num_workers, settings.beam_options
                with open_engine(settings.engine, num_workers=num_workers, beam_options=options) as engine:
                    job = self.job_work.resume(digest, engine, self.progress)
                    report = self._write(job, folder, plan)
            finally:
                close_folder(folder)
        values = LinkValues(folder / VALUES).schema if (folder / VALUES).exists() else None
        write_text(folder / "schema.pbtxt", message_text(schema_of_samples(sampling, store.schema, values)))
        call = [digest, report.num_seeds, len(report.paths), report.num_bytes]
        if isinstance(self.schema_path, Path):
            self.job_work.put_in_place(folder / "schema.pbtxt", json.dumps(call))
        else:
            put_file(folder / "schema.pbtxt", self.schema_path)
            self.work.clear()
        return report

    @property
    def schema_path(self) -> AnyPath:
        """The file with the schema, which marks the export as complete."""
        return self.work.root if isinstance(self.place, Path) else self.place.with_name(f"{self.place.name}.pbtxt")

    @property
    def job_work(self) -> WorkFolder:
        """Work folder of the job, beside the dataset of a unigraph."""
        return self.work.inside("export")

    def _finished(self, digest: str) -> ExportReport | None:
        """Return the report of an earlier call that was ended after it had written everything, or None."""
        call: list[Any] = [None] if self.work.finished_call is None else json.loads(self.work.finished_call)
        if call[0] != digest:
            return None
        return ExportReport(
            paths=(self.place,) if self.settings.one_file else tuple(shard_paths(self.place, call[2])),
            schema_path=self.schema_path, num_seeds=call[1], num_bytes=call[3], seconds={}, wall_seconds={},
        )  # fmt: skip

    def _check_seeds(self, is_linked: bool) -> None:
        settings = self.settings
        if self.seeds is not None and settings.split is not None:
            raise SettingsError(f"seeds are given, and split is {settings.split!r}; leave one of them out")
        if is_linked and self.seeds is None:
            raise SettingsError("the spec starts from links; give a table of seeds with #source and #target")
        if isinstance(self.seeds, str | Path):
            columns: tuple[tuple[str, ...], ...] = LINK_COLUMNS if is_linked else NODE_COLUMNS
            if settings.seed_column is not None:
                if is_linked:
                    raise SettingsError(
                        "seed_column is for seeds that are nodes only; links are read from #source and #target: "
                        "leave it out"
                    )
                columns = ((settings.seed_column,),)
            values = (settings.labels or None) if is_linked else ()
            self.table = SeedTable.of(self.seeds, columns, values)
            self.table.check_columns()
        elif is_linked and settings.labels:
            raise SettingsError(
                f"labels are {list(settings.labels)}, but no table of seeds is given that holds them; give seeds with "
                "these columns"
            )
        elif settings.seed_column is not None:
            raise SettingsError(
                f"seed_column is {settings.seed_column!r}, but no table of seeds is given; give one, or leave "
                "seed_column out"
            )

    def _check_inputs(self) -> None:
        """Refuse to overwrite an input.

        Raises:
            SettingsError: An input is in the output folder and has a name that the export writes or removes.
        """
        seeds: Sequence[AnyPath] = () if self.table is None else self.table.paths
        read: dict[str, Sequence[str | AnyPath]] = {"the spec": [self.spec_name], "the table of seeds": seeds}
        root = self.schema_path
        for what, paths in read.items():
            for path in map(_resolved, paths):
                is_ours = path == root or (path.parent == root.parent and self._names().fullmatch(path.name))
                if is_ours:
                    raise SettingsError(
                        f"out is {self.place}, which would overwrite {path.name}, {what}; give another name"
                    )

    def _digest(self, sampling: SeedSampling, is_linked: bool) -> str:
        """Return a digest of everything that determines the bytes of the files."""
        settings = self.settings
        seeds: list[Any] | None = None if self.table is None else self.table.states()
        if self.table is None and self.seeds is not None:
            seeds = [digest_of_seeds(array_batches(self.seeds, "seeds", 2 if is_linked else 1))]
        decides = (
            settings.num_shards, settings.file_format, settings.compression, settings.split, settings.seed_column,
            settings.labels, settings.on_dangling, settings.one_file,
        )  # fmt: skip
        return digest_of(
            [FORMAT, str(self.place), self.source.graph_id, asdict(sampling), seeds, list(map(str, decides))]
        )  # fmt: skip

    def _num_given(self) -> int:
        """Return the number of given seeds; 0 if it is unknown before they are read."""
        if self.table is not None:
            return self.table.num_known()
        return 0 if self.seeds is None or isinstance(self.seeds, Path) else len(self.seeds)

    def _planned(
        self, folder: Path, located: str, store: Store, sampling: SeedSampling, maker: SampleMaker, work: Allotment
    ) -> tuple[ExportPlan, Allotment]:
        """Find the seeds, write their keys and the plan to the job's folder, and return the plan."""
        num_seeds, work = self._find_seeds(folder, store, maker, work)
        settings = self.settings
        num_shards = 1 if settings.one_file else settings.num_shards
        num_shards = num_shards or max(1, min(USUAL_SHARDS, -(-num_seeds // SEEDS_PER_SHARD)))
        found = ExportPlan(
            source=located, sampling=sampling, stem=uri_of(self.place), num_seeds=num_seeds, num_shards=num_shards,
            one_file=settings.one_file, has_keys=(folder / SEEDS).exists(), file_format=settings.file_format,
            compression=settings.compression, num_threads=settings.num_threads,
        )  # fmt: skip
        write_spec(folder, found)
        return found, work

    def _find_seeds(
        self, folder: Path, store: Store, maker: SampleMaker, work: Allotment
    ) -> tuple[int, Allotment]:  # fmt: skip
        """Find the seeds, and write their keys unless they are all nodes.

        The result is the number of seeds, and the job's allotment.
        """
        settings, path = self.settings, folder / SEEDS
        ids = [NodeIds(store, *end) for end in maker.ends]
        if self.seeds is None and settings.split is None:
            if not ids[0].num_nodes:
                raise SettingsError(f"{ids[0].node_type} has no nodes, so there is nothing to export")
            return ids[0].num_nodes, work
        at_once = (work.memory_bytes - PROCESS_BYTES) // LOOKUP_BYTES
        num_columns = len(ids)
        if not path.exists():
            if self.table is not None:
                batches = written_values(folder / VALUES, self.table.batches(), str(self.seeds))
                write_seeds(path, batches, ids, str(self.seeds), at_once)
            elif self.seeds is not None:
                write_seeds(path, array_batches(self.seeds, "seeds", num_columns), ids, "seeds", at_once)
            else:
                write_numbers(path, split_seeds(store, ids[0].node_type, str(settings.split)))
        keys = read_seeds(path, num_columns)
        work = _allotted(settings, len(keys))
        if not (folder / REPEATS).exists():
            write_numbers(folder / REPEATS, repeats_of(keys))
        return len(keys), work

    def _write(self, job: Job, folder: Path, plan: ExportPlan) -> ExportReport:
        if not (folder / BEGUN).exists():
            self._remove_files()
            (folder / BEGUN).touch()
        tasks = [
            Task(f"shard-{shard}", kind_of(write_shard), {"folder": str(folder), "shard": shard}, last - first)
            for shard in range(plan.num_shards)
            for first, last in (plan.range_of(shard),)
        ]
        for partial in folder.glob(f"*{PARTIAL}"):  # left by killed workers
            partial.unlink(missing_ok=True)
        sizes = {path.name: path.stat().st_size for path in self._files()}
        for one, path in zip(tasks, plan.paths, strict=True):
            result = job.result_of(one)
            if result is None or sizes.get(path.name) != result["bytes"]:  # not written, or removed or truncated since
                job.forget(one)
        results = list(job.run("export", tasks).values())
        return ExportReport(
            paths=tuple(plan.paths), schema_path=self.schema_path, num_seeds=plan.num_seeds,
            num_bytes=sum(result["bytes"] for result in results),
            seconds={name: sum(result["seconds"][name] for result in results) for name in STAGES},
            wall_seconds={name: sum(result["wall_seconds"][name] for result in results) for name in STAGES},
        )  # fmt: skip

    def _names(self) -> re.Pattern[str]:
        """Return a pattern of the names of shards of an export of this name."""
        number = r"-\d{5}-of-\d{5}"
        return re.compile(re.escape(self.place.name) + (f"({number})?" if self.settings.one_file else number))

    def _files(self) -> list[AnyPath]:
        """List the shards of an export of this name, complete or not."""
        name, folder = self._names(), self.place.parent
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted((path for path in found if name.fullmatch(path.name)), key=lambda path: path.name)

    def _check_place(self, digest: str) -> None:
        """Refuse to replace an export without ``overwrite``; shards of an interrupted export may be replaced.

        Raises:
            SettingsError: There is an export of this name, or the schema's name is taken by a unigraph.
        """
        is_complete = self.schema_path.exists()
        if is_complete and names_tables(self.schema_path):
            raise SettingsError(f"{self.schema_path} is the schema of a unigraph, not of an export; give another name")
        was_ended = job_digest(self.job_work.path) is not None and any(self.job_work.path.glob(f"*/{BEGUN}"))
        files = self._files()
        if self.overwrite or not (is_complete or files) or (was_ended and not is_complete):
            return
        shown = self.schema_path if is_complete else files[0]
        raise SettingsError(f"{shown} exists already; give overwrite=True or another name")

    def _remove_files(self) -> None:
        """Remove an earlier export: the schema first, because it marks the shards as complete."""
        self.schema_path.unlink(missing_ok=True)
        for path in self._files():
            path.unlink(missing_ok=True)

    def _clear(self, digest: str) -> None:
        """Remove all files of a job that cannot be resumed."""
        if (self.job_work.job_root(digest) / BEGUN).exists():
            self._remove_files()
        self.work.clear()
