"""Spreads a dataset over roots, such as one per machine, and lists the servers of the machines."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from hopstream.dataset.copying.placing import RootList, place_parts
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import Roots
from hopstream.engine.settings import Progress, WorkerOptions, WorkerSettings
from hopstream.uris import local_path


def place(  # noqa: PLR0913  what is copied where, and how
    dataset: str | Path, roots: RootList, *, move: bool = False, ip_config: str | Path | None = None,
    has_tls: bool = False, overwrite: bool = False, settings: WorkerSettings | None = None,
    progress: Progress | None = None, **options: Unpack[WorkerOptions],
) -> Roots:  # fmt: skip
    """Spread a dataset over several roots, such as one per machine.

    Each root gets the folders of its parts, and the manifest last. Every file is checked against the manifest while it
    is copied. After a kill the same call resumes; files that have arrived are kept.

    Args:
        dataset: The folder of a dataset.
        roots: Local folders, or URIs of Arrow's file systems (``file://``, ``s3://``, ``gs://``, ``hdfs://`` …). Part
            ``i`` goes to root ``i`` modulo their number; a mapping gives the parts of each root. An empty sequence
            leaves all parts where they are, for ``ip_config`` to serve.
        move: Remove each file after its arrival, so that no disk holds the dataset twice.
        ip_config: A file with a line ``ip [port] [num_servers]`` per machine. A ``cluster.json`` of their servers is
            written beside every manifest. Machine ``k`` serves the parts of root ``k``. If one root has all parts,
            machine ``k`` serves parts ``k``, ``k + M``, … of ``M`` machines.
        has_tls: Whether the servers of ``ip_config`` use TLS.
        overwrite: Replace other datasets in the roots.
        settings: Number and kind of workers; None for the defaults.
        progress: Called as ``progress("place", done, total)`` in bytes.
        **options: Fields of ``WorkerSettings``; they override ``settings``.

    Returns:
        The root or roots of each part.

    Raises:
        SettingsError: Roots, parts or machines contradict each other. Or a root cannot be opened, holds what must not
            be replaced, or its disk has no room.
        FormatError: The dataset is not finished, one of its files is missing, or ``ip_config`` cannot be read.
        ChecksumError: A file does not match its checksum.
        StateError: Another process places or changes the dataset, or writes to a root.
        OSError: A system call failed; the error names the root.
    """
    settings = replace(settings or WorkerSettings(), **options)
    folder = local_path(dataset)
    cluster_of = None if ip_config is None else partial(_cluster_text, local_path(ip_config), has_tls=has_tls)
    return place_parts(
        folder, roots, move=move, cluster_of=cluster_of, overwrite=overwrite, settings=settings, progress=progress
    )


def _cluster_text(ip_config: Path, roots: Roots, manifest: Manifest, *, has_tls: bool) -> str:
    """Return the ``cluster.json`` for the servers of a file of machines."""
    from hopstream.store.cluster import cluster_text
    from hopstream.store.ip_config import cluster_of_machines, read_ip_config

    return cluster_text(cluster_of_machines(read_ip_config(ip_config), roots.entries, manifest, has_tls=has_tls))
