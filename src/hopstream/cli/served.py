"""Chooses the folder, the parts and the address of a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.dataset.chunks import parse_parts
from hopstream.dataset.copying.local_copy import folder_of
from hopstream.dataset.paths import CLUSTER, is_here
from hopstream.dataset.settings import MAX_PARTS
from hopstream.errors import SettingsError
from hopstream.uris import is_uri, shown_uri

if TYPE_CHECKING:
    from hopstream.cli.serve import ServeSettings
    from hopstream.store.local import LocalStore

LISTED = ("parts", "location")
"""Settings that ``--server`` takes from ``cluster.json``."""


def brought_here(dataset: str, settings: ServeSettings, output: Output) -> Path:
    """Return the folder to serve from, and copy missing parts to it.

    They are copied to ``cache_dir``, or without it from a URI to the cache folder.

    Raises:
        SettingsError: The dataset is a URI, ``server`` is given, and ``cache_dir`` is not.
        FormatError: The source lacks a part, or a file of it is damaged.
        OSError: The system failed.
    """
    is_named = settings.server is None and settings.parts not in ("all", "here")
    parts = parse_parts(settings.parts, MAX_PARTS) if is_named else None
    if settings.cache_dir is None:
        if is_uri(dataset) and settings.server is not None:
            raise SettingsError(
                f"--server takes parts and address from a {CLUSTER}, and {shown_uri(dataset)} is not a folder of this "
                "machine; give --cache-dir, a folder to copy the file and the parts to"
            )
        with progress_bars() as progress:
            return folder_of(dataset, parts, progress=progress)
    from hopstream.dataset.copying.pull import pull

    clock = Clock()
    with progress_bars() as progress:
        manifest = pull(dataset, settings.cache_dir, parts=parts, progress=progress)
    facts: Facts = {"out": str(settings.cache_dir), "dataset_id": manifest.dataset_id}
    output.stage("pull", shown_uri(dataset), f" in {settings.cache_dir}", facts, clock.cost())
    return settings.cache_dir


def as_listed(dataset: Path, settings: ServeSettings) -> ServeSettings:
    """Replace, with ``server``, parts and address by those in the dataset's ``cluster.json``.

    Raises:
        SettingsError: The file lists no such server, or parts or address are given in two ways.
        FormatError: The file is missing, or cannot be read.
    """
    if settings.server is None:
        return settings
    from hopstream.store.cluster import read_cluster

    defaults = type(settings)()
    if any(getattr(settings, name) != getattr(defaults, name) for name in LISTED):
        raise SettingsError("--server takes parts and address from cluster.json; leave out --parts and --location")
    path = dataset / CLUSTER
    servers = read_cluster(path).servers
    if not 0 <= settings.server < len(servers):
        raise SettingsError(f"--server is {settings.server}; {path} lists servers 0..{len(servers) - 1}")
    entry = servers[settings.server]
    return replace(settings, parts=",".join(map(str, entry.parts)), location=entry.location)


def open_parts(dataset: Path, settings: ServeSettings) -> LocalStore:
    """Map the parts to serve, after the checks of ``settings.verify``.

    Raises:
        SettingsError: ``settings.parts`` is invalid or names no part.
        FormatError: A part is missing, or a file of it contradicts the manifest.
        ChecksumError: With ``settings.verify``, a checksum differs.
    """
    from hopstream.dataset.layout import open_dataset
    from hopstream.store.local import LocalStore

    opened = open_dataset(dataset)
    num_parts = opened.manifest.book.num_parts
    is_named = settings.parts != "here"
    here = (part for part in range(num_parts) if is_here(dataset, part))
    parts = parse_parts(settings.parts, num_parts) if is_named else tuple(here)
    if not parts:
        raise SettingsError(f"--parts is 'here', but {dataset} has no folder of a part; give another folder")
    return LocalStore(opened.check(settings.verify, parts), parts)
