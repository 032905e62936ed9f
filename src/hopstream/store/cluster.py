"""Cluster files: the servers of each part, and a store over all of them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hopstream.arrays import write_text
from hopstream.dataset.layout import open_dataset
from hopstream.errors import (
    FormatError,
    SchemaError,
    SettingsError,
    StoreTimeout,
    StoreUnavailable,
    VersionMismatch,
)
from hopstream.store.contract import Store
from hopstream.store.facts import StoreFacts
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore, parts_label
from hopstream.store.routed import Explain, RoutedStore, check_same_dataset
from hopstream.store.settings import StoreSettings, check_store_settings
from hopstream.transport.location import Location, check_scheme

FORMAT = 1
MAX_FILE_BYTES = 64 << 20
MAX_CONNECTING = 64
"""Servers to which a cluster connects at once; more servers share the deadline in rounds."""
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEntry:
    """Server of a cluster.

    Attributes:
        location: ``tcp://host:port``, ``tls://host:port`` or ``unix:///path``.
        parts: The parts that the server serves; empty if only the server knows.
        path: The dataset's folder on the server's machine, if it is known.
    """

    location: str
    parts: tuple[int, ...] = ()
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The servers of one dataset.

    Attributes:
        dataset_id: Fingerprint of the dataset; None if only the servers know.
        servers: The servers; several may serve the same part.
        token_file: File of the token that the servers require; it lies beside the cluster file. None if the cluster
            file names none.
        owner: User id of the owner of the cluster file; None without a file. The token file is used only if the same
            user owns it: the author of a cluster file must not make readers send another user's file.
    """

    dataset_id: str | None
    servers: tuple[ServerEntry, ...]
    token_file: Path | None = None
    owner: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse an empty list of servers, invalid locations and duplicates."""
        if not self.servers:
            raise SettingsError("a cluster has at least one server, got none")
        for entry in self.servers:
            Location.parse(entry.location)
        locations = [entry.location for entry in self.servers]
        twice = sorted({location for location in locations if locations.count(location) > 1})
        if twice:
            raise SettingsError(f"a cluster names a server twice: {', '.join(twice)}")

    def access(self, settings: StoreSettings | None) -> StoreSettings:
        """Return the settings for requests to the servers, with the cluster's token unless they have one.

        The token file is ignored with a warning if this user cannot read it, or if another user than the owner of the
        cluster file owns it. No error is raised, because a store that maps all parts needs no token.

        Raises:
            SettingsError: ``settings`` is not a ``StoreSettings``.
        """
        settings = check_store_settings(settings)
        if self.token_file is None or settings.security.has_token:
            return settings
        try:
            security = replace(settings.security, token_file=self.token_file, token_owner=self.owner)
            return replace(settings, security=security)
        except SettingsError as error:
            LOG.warning("%s; requests to the servers of the cluster carry no token", error)
            return settings


def read_cluster(path: Path, *, instead: str = "the path of a dataset") -> Cluster:
    """Read ``cluster.json``; its relative folders and its token file are relative to the file's folder.

    Args:
        path: The file.
        instead: What else the caller takes, for the error of a missing file.

    Raises:
        FormatError: The file is missing, has another format, or leaves a part without server.
        SettingsError: ``path`` is an address without a scheme.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_size > MAX_FILE_BYTES:
                raise FormatError(f"{path} has more than {MAX_FILE_BYTES} bytes; it is not a cluster file")
            value = json.loads(file.read().decode("utf-8"))
    except FileNotFoundError as error:
        check_scheme(str(path))
        raise FormatError(f"{path} is missing; start the servers, or give {instead}") from error
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is not a cluster file: {error}") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        got = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise FormatError(f"{path} has format {str(got)[:50]}; this version reads {FORMAT}")
    try:
        servers = tuple(_entry_from_json(entry, path.parent) for entry in value["servers"])
        token_file = _token_file(path, value.get("token_file"))
        cluster = Cluster(
            dataset_id=str(value["dataset_id"]), servers=servers, token_file=token_file, owner=found.st_uid
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path} is not a cluster file: {error!r}") from error
    parts = {part for entry in cluster.servers for part in entry.parts}
    missing = sorted(set(range(max(parts) + 1)) - parts)
    if missing:
        raise FormatError(f"{path} names no server for {parts_label(missing)}; start one for it")
    return cluster


def write_cluster(path: Path, cluster: Cluster) -> None:
    """Write ``cluster.json`` atomically.

    Raises:
        SettingsError: The dataset or the parts of a server are unknown, or the token file lies in another folder.
    """
    if cluster.token_file is not None and cluster.token_file.absolute().parent != path.absolute().parent:
        raise SettingsError(f"token file {cluster.token_file} does not lie beside {path}; put it there")
    write_text(path, cluster_text(cluster))


def cluster_text(cluster: Cluster) -> str:
    """Return the content of ``cluster.json``.

    Raises:
        SettingsError: The dataset or the parts of a server are unknown.
    """
    if cluster.dataset_id is None or not all(entry.parts for entry in cluster.servers):
        raise SettingsError("a cluster file needs the dataset's fingerprint and the parts of every server")
    servers = [
        {"location": e.location, "parts": list(e.parts), "path": None if e.path is None else str(e.path)}
        for e in cluster.servers
    ]
    value: dict[str, Any] = {"format": FORMAT, "dataset_id": cluster.dataset_id, "servers": servers}
    if cluster.token_file is not None:
        value["token_file"] = cluster.token_file.name
    return json.dumps(value, indent=1) + "\n"


def parse_locations(text: str) -> Cluster:
    """Parse a list of locations such as ``tcp://host:7001,unix:///run/graph.sock``.

    Raises:
        SettingsError: An entry is not a location.
    """
    return Cluster(dataset_id=None, servers=tuple(ServerEntry(location=_plain(one)) for one in text.split(",")))


def open_cluster(
    cluster: Cluster,
    settings: StoreSettings | None = None,
    *,
    own: ServerEntry | None = None,
    explain: Explain | None = None,
) -> Store:
    """Open a store over all parts of a cluster.

    Parts whose dataset is on this machine are mapped. The store connects to the other servers in parallel and asks
    which parts they serve. An unreachable server is an error unless other servers serve all of its parts.

    Args:
        cluster: The servers.
        settings: Deadline, security and use of local folders.
        own: The server that opens the store, if a server opens it. Its parts are mapped from its folder in any case.
            The store asks neither this server nor servers whose parts are all among its parts.
        explain: See ``RoutedStore``.

    Raises:
        SettingsError: ``settings`` is not a ``StoreSettings``.
        StoreTimeout: A required server did not answer in time.
        StoreUnavailable: A required server is unreachable, or no server holds some part.
        AccessDenied: A server refused the token or certificate.
        VersionMismatch: The servers serve different datasets, or another dataset than the cluster's.
    """
    settings = cluster.access(settings)
    opening = _Opening(cluster, settings, own)
    try:
        return opening.open(explain)
    except BaseException:
        opening.close()
        raise


class _Opening:
    """Stores of a cluster while it is being opened."""

    def __init__(self, cluster: Cluster, settings: StoreSettings, own: ServerEntry | None) -> None:
        self._cluster = cluster
        self._settings = settings
        self._own = own
        self._stores: list[Store] = []
        self._parts_of_path: dict[Path, set[int]] = {}
        if own is not None and own.path is not None:
            self._parts_of_path[own.path.resolve()] = set(own.parts)
        self._dead: list[tuple[ServerEntry, StoreTimeout | StoreUnavailable]] = []

    def open(self, explain: Explain | None) -> Store:
        """Open the store over all parts."""
        others = [entry for entry in self._cluster.servers if not self._is_own(entry.parts, entry.location)]
        remote = [entry for entry in others if not self._is_here(entry.path, entry.parts)]
        found = self._connect(remote)
        self._stores += found
        check_same_dataset(found)  # before stores of mapped parts are dropped: errors name the servers' addresses
        for store in found:
            if self._is_own(store.parts) or self._is_here(store.facts.path, store.parts, store.dataset_id):
                self._stores.remove(store)
                store.close()
        for path, parts in self._parts_of_path.items():
            self._stores.insert(0, LocalStore(open_dataset(path).check(self._settings.verify, parts), sorted(parts)))
        self._check_datasets()
        match self._stores:
            case [LocalStore() as only] if len(only.parts) == only.book.num_parts:
                return only
        self._add_dead()
        self._check_parts()
        return RoutedStore(self._stores, self._settings, explain)

    def close(self) -> None:
        """Close the opened stores after a failure."""
        for store in self._stores:
            store.close()

    def _is_own(self, parts: Sequence[int], location: str | None = None) -> bool:
        """Return whether a server is the one that opens the store, or all its parts are parts of that server."""
        if self._own is None:
            return False
        return location == self._own.location or (bool(parts) and set(parts) <= set(self._own.parts))

    def _is_here(self, path: Path | None, parts: Sequence[int], dataset_id: str | None = None) -> bool:
        """Return whether a folder on this machine holds these parts; if so, they will be mapped."""
        dataset_id = dataset_id or self._cluster.dataset_id
        if path is None or not parts or dataset_id is None or not self._settings.prefer_local:
            return False
        try:
            dataset = open_dataset(path)
            if dataset.manifest.dataset_id != dataset_id:
                return False
            for part in parts:
                dataset.open_part(part)
        except (FormatError, SchemaError, OSError, LookupError) as error:
            LOG.debug("%s is not mapped: %s", path, error)
            return False
        self._parts_of_path.setdefault(path.resolve(), set()).update(parts)
        return True

    def _connect(self, entries: Sequence[ServerEntry]) -> list[RemoteStore]:
        """Connect to all servers within one deadline; keep unreachable servers in ``_dead``."""
        if not entries:
            return []
        num_rounds = -(-len(entries) // MAX_CONNECTING)
        hasty = replace(self._settings, timeout_s=self._settings.timeout_s / num_rounds)
        with ThreadPoolExecutor(min(len(entries), MAX_CONNECTING)) as pool:
            futures = [pool.submit(RemoteStore, entry.location, hasty) for entry in entries]
        found: list[RemoteStore] = []
        failure: BaseException | None = None
        for entry, future in zip(entries, futures, strict=True):
            error = future.exception()
            if error is None:
                found.append(future.result().with_timeout(self._settings.timeout_s))
            elif isinstance(error, StoreTimeout | StoreUnavailable):
                self._dead.append((entry, error))
            else:
                failure = failure or error
        if failure is not None:
            self._stores += found
            raise failure
        return found

    def _check_datasets(self) -> None:
        wanted = self._cluster.dataset_id
        for store in self._stores:
            if wanted is not None and store.dataset_id != wanted:
                where = store.label if isinstance(store, RemoteStore) else "the local folder"
                raise VersionMismatch(
                    f"{where} serves dataset {store.dataset_id}; the cluster file names {wanted}; "
                    "restart the server with the cluster's dataset, or write the cluster file again"
                )

    def _check_parts(self) -> None:
        """Raise ``StoreUnavailable`` if no server holds some part."""
        held = {part for store in self._stores for part in store.parts}
        missing = sorted(set(range(self._stores[0].book.num_parts)) - held) if self._stores else []
        if missing:
            asked = ", ".join(entry.location for entry in self._cluster.servers)
            raise StoreUnavailable(
                f"no server holds {parts_label(missing)} of {self._stores[0].book.num_parts} parts (asked: {asked}); "
                "add the addresses of servers that hold them, or start such servers"
            )

    def _add_dead(self) -> None:
        """Add unreachable servers as replicas if others serve all of their parts; else raise their error."""
        held = {part for store in self._stores for part in store.parts}
        num_parts = self._stores[0].book.num_parts if self._stores else None
        max_ids = min((s.facts.max_ids for s in self._stores if isinstance(s, RemoteStore)), default=1 << 20)
        for entry, error in self._dead:
            is_needed = not held.issuperset(entry.parts) if entry.parts else num_parts is None or len(held) < num_parts
            if is_needed:
                raise error
            LOG.warning("%s; other servers hold its parts, so the store is opened without it for now", error)
            facts = StoreFacts.of(self._stores[0], max_ids=max_ids, parts=tuple(sorted(entry.parts)))
            self._stores.append(RemoteStore(entry.location, self._settings, facts=facts))


def _entry_from_json(value: dict[str, Any], folder: Path) -> ServerEntry:
    parts = tuple(value["parts"])
    if not parts or not all(type(part) is int and 0 <= part < 1 << 20 for part in parts):
        raise FormatError(f"parts of {value['location']!r} are {str(parts)[:100]}; they are one or more numbers from 0")
    path = value.get("path")
    return ServerEntry(
        location=_plain(str(value["location"])), parts=parts, path=None if path is None else folder / str(path)
    )


def _plain(location: str) -> str:
    """Normalise a location: ``grpc://`` becomes ``tcp://``."""
    return str(Location.parse(location.strip()))


def _token_file(path: Path, name: object) -> Path | None:
    """Return the path of the token file that a cluster file names, in the cluster file's folder."""
    if name is None:
        return None
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise FormatError(f"token_file is {str(name)[:100]!r}; it must be the name of a file beside the cluster file")
    return path.parent / name
