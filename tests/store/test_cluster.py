"""Checks that a cluster opens from a file or a list, maps what is near and names what is gone."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopstream
from hopstream.errors import (
    AccessDenied,
    FormatError,
    SettingsError,
    StoreTimeout,
    StoreUnavailable,
    VersionMismatch,
)
from hopstream.store import open_store
from hopstream.store.cluster import Cluster, ServerEntry, parse_locations, read_cluster, write_cluster
from hopstream.store.contract import KEY, FetchRequest, Store
from hopstream.store.local import LocalStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.store.cases import Case
from tests.store.processes import ServerProcess, wait_until

DEAD = "tcp://127.0.0.1:1"
FAR = StoreSettings(prefer_local=False, timeout_s=20)


@pytest.fixture
def servers(typed_case: Case) -> Iterator[list[StoreServer]]:
    """A server per part, which names its folder."""
    with ExitStack() as stack:
        yield [stack.enter_context(StoreServer(typed_case.shared([part]), path=typed_case.root)) for part in range(3)]


def cluster_of(case: Case, servers: list[StoreServer], path: Path | None = None) -> Cluster:
    entries = [ServerEntry(location=s.location, parts=(part,), path=path) for part, s in enumerate(servers)]
    return Cluster(dataset_id=case.dataset.manifest.dataset_id, servers=tuple(entries))


def write(tmp_path: Path, cluster: Cluster) -> Path:
    write_cluster(tmp_path / "cluster.json", cluster)
    return tmp_path / "cluster.json"


def check_answers(case: Case, store: Store) -> None:
    keys = np.arange(60)
    assert store.parts == (0, 1, 2)
    (columns,) = store.fetch([FetchRequest(entity="paper", names=(KEY, "feat"), ids=store.lookup("paper", keys))])
    assert columns[KEY].tolist() == keys.tolist()
    assert np.array_equal(columns["feat"], case.graph.nodes["paper"].features["feat"])


def num_requests(servers: list[StoreServer]) -> list[int]:
    return [server.stats.num_requests for server in servers]


def test_a_cluster_file_survives_a_round_trip(typed_case: Case, servers: list[StoreServer], tmp_path: Path) -> None:
    cluster = cluster_of(typed_case, servers, typed_case.root)
    assert read_cluster(write(tmp_path, cluster)) == cluster
    assert list(tmp_path.iterdir()) == [tmp_path / "cluster.json"]
    value = json.loads((tmp_path / "cluster.json").read_text(encoding="utf-8"))
    assert value["format"] == 1
    assert value["servers"][1] == {"location": servers[1].location, "parts": [1], "path": str(typed_case.root)}


def test_a_folder_in_a_cluster_file_is_relative_to_it(tmp_path: Path) -> None:
    value = {"format": 1, "dataset_id": "d", "servers": [{"location": DEAD, "parts": [0], "path": "parts"}]}
    (tmp_path / "cluster.json").write_text(json.dumps(value), encoding="utf-8")
    assert read_cluster(tmp_path / "cluster.json").servers[0].path == tmp_path / "parts"


def test_servers_of_a_cluster_file_are_queried(typed_case: Case, servers: list[StoreServer], tmp_path: Path) -> None:
    path = write(tmp_path, cluster_of(typed_case, servers))
    for source in (path, str(path)):
        with open_store(source, FAR) as store:
            assert isinstance(store, RoutedStore)
            check_answers(typed_case, store)
    assert all(n > 2 for n in num_requests(servers))


def test_servers_of_a_list_are_queried(typed_case: Case, servers: list[StoreServer]) -> None:
    with open_store(", ".join(server.location for server in servers), FAR) as store:
        assert isinstance(store, RoutedStore)
        check_answers(typed_case, store)


def test_parts_in_a_folder_of_this_machine_are_mapped(
    typed_case: Case, servers: list[StoreServer], tmp_path: Path
) -> None:
    path = write(tmp_path, cluster_of(typed_case, servers, typed_case.root))
    with open_store(path) as store:
        assert isinstance(store, LocalStore)
        check_answers(typed_case, store)
    assert num_requests(servers) == [0, 0, 0]


def test_a_folder_announced_by_the_server_is_mapped(typed_case: Case, servers: list[StoreServer]) -> None:
    with open_store(",".join(server.location for server in servers)) as store:
        assert isinstance(store, LocalStore)
        check_answers(typed_case, store)
    assert num_requests(servers) == [1, 1, 1]


def test_a_folder_of_another_dataset_is_not_mapped(
    typed_case: Case, tmp_path: Path, find_case: Callable[[str, int], Case]
) -> None:
    folders = [find_case("typed", 4).root, typed_case.root, tmp_path]
    with ExitStack() as stack:
        servers = [stack.enter_context(StoreServer(typed_case.shared([part]))) for part in range(3)]
        entries = [
            ServerEntry(location=server.location, parts=(part,), path=folders[part])
            for part, server in enumerate(servers)
        ]
        path = write(tmp_path, Cluster(dataset_id=typed_case.dataset.manifest.dataset_id, servers=tuple(entries)))
        with open_store(path) as store:
            assert isinstance(store, RoutedStore)
            check_answers(typed_case, store)
        assert [n > 0 for n in num_requests(servers)] == [True, False, True]


def test_the_kind_of_a_source_is_recognized(typed_case: Case) -> None:
    with open_store(typed_case.root) as store, open_store(str(typed_case.root)) as again:
        assert isinstance(store, LocalStore)
        assert isinstance(again, LocalStore)
        assert open_store(store) is store


def test_a_dead_server_is_named_with_the_remedy(typed_case: Case, servers: list[StoreServer], tmp_path: Path) -> None:
    cluster = cluster_of(typed_case, servers)
    broken = Cluster(
        dataset_id=cluster.dataset_id, servers=(*cluster.servers[:2], ServerEntry(location=DEAD, parts=(2,)))
    )
    with pytest.raises(StoreUnavailable, match=f"{DEAD} cannot be reached .*start the server"):
        open_store(write(tmp_path, broken), FAR)
    with pytest.raises(StoreUnavailable, match=f"{DEAD} cannot be reached .*start the server"):
        open_store(f"{servers[0].location},{DEAD}", FAR)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        open_store(DEAD, FAR)


def test_a_frozen_server_is_named_within_the_deadline(typed_case: Case, servers: list[StoreServer]) -> None:
    with ServerProcess(typed_case.root, "--parts", "2") as process:
        process.freeze()
        source = ",".join([servers[0].location, servers[1].location, process.location])
        with pytest.raises(StoreTimeout, match=rf"{process.location} gave no answer in 1 s to describe"):
            open_store(source, StoreSettings(prefer_local=False, timeout_s=1))
        process.thaw()


def test_a_dead_replica_does_not_stop_the_cluster(
    typed_case: Case, servers: list[StoreServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = cluster_of(typed_case, servers)
    dead = ServerEntry(location=DEAD, parts=(0, 1))
    path = write(tmp_path, Cluster(dataset_id=cluster.dataset_id, servers=(dead, *cluster.servers)))
    with open_store(path, FAR) as store:
        check_answers(typed_case, store)
    assert f"{DEAD} cannot be reached" in caplog.text
    with open_store(",".join([DEAD, *(server.location for server in servers)]), FAR) as store:
        check_answers(typed_case, store)


def test_a_replica_that_recovers_is_queried(typed_case: Case, tmp_path: Path) -> None:
    one, two = StoreServer(typed_case.shared()), StoreServer(typed_case.shared())
    parts = (0, 1, 2)
    entries = tuple(ServerEntry(location=server.location, parts=parts) for server in (one, two))
    path = write(tmp_path, Cluster(dataset_id=typed_case.dataset.manifest.dataset_id, servers=entries))
    one.close()
    with open_store(path, FAR) as store, StoreServer(typed_case.shared(), one.location) as back:
        check_answers(typed_case, store)
        two.close()
        check_answers(typed_case, store)
        wait_until(lambda: back.stats.num_requests > 0, "its requests are counted")


def test_parts_of_a_late_server_are_requested_when_needed(typed_case: Case) -> None:
    with ExitStack() as stack:
        one, two, three = (stack.enter_context(StoreServer(typed_case.shared())) for _ in range(3))
        source = ",".join(server.location for server in (one, two, three))
        one.close()
        two.close()
        store = stack.enter_context(open_store(source, FAR))
        assert isinstance(store, RoutedStore) and store.keeps_rows
        check_answers(typed_case, store)
        three.close()
        with pytest.raises(StoreUnavailable, match=rf"no replica of part .*{three.location}.*{one.location} cannot be"):
            check_answers(typed_case, store)
        stack.enter_context(StoreServer(typed_case.shared([0, 2]), one.location))
        with pytest.raises(StoreUnavailable, match=f"parts 0, 2 at {one.location} does not serve part 1"):
            check_answers(typed_case, store)
        stack.enter_context(StoreServer(typed_case.shared([0, 1]), two.location))
        check_answers(typed_case, store)


def test_a_server_that_never_lists_its_parts_times_out(typed_case: Case, find_case: Callable[[str, int], Case]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, StoreServer(typed_case.shared()) as server:
        location = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with open_store(f"{location},{server.location}", replace(FAR, timeout_s=1)) as store:
            server.close()
            started = time.monotonic()
            with pytest.raises(StoreTimeout, match=rf"{location} gave no answer in .* to describe"):
                check_answers(typed_case, store)
            assert time.monotonic() - started < 5
            silent.close()
            with (
                StoreServer(find_case("typed", 4).shared(), location),
                pytest.raises(
                    StoreUnavailable, match=rf"{location} serves dataset .*; wanted .*: restart it with that"
                ),
            ):
                check_answers(typed_case, store)


def test_servers_of_unknown_parts_do_not_delay_other_servers(typed_case: Case) -> None:
    class Slow(LocalStore):
        """Answers lookups after 1.2 s."""

        def lookup(self, node_type: str, keys: np.ndarray) -> np.ndarray:
            threading.Event().wait(1.2)
            return super().lookup(node_type, keys)

    with StoreServer(Slow(typed_case.dataset)) as server:
        locations = f"{server.location},{DEAD},tcp://127.0.0.1:2"
        with open_store(locations, replace(FAR, timeout_s=2)) as store:
            node_type = next(iter(store.schema.nodes))
            assert store.lookup(node_type, np.arange(2)).min() >= 0


def test_a_server_restarted_with_another_dataset_is_skipped(
    typed_case: Case, find_case: Callable[[str, int], Case]
) -> None:
    with ExitStack() as stack:
        first, second, third = (StoreServer(typed_case.shared()) for _ in range(3))
        second.close()
        third.close()
        with open_store(",".join(one.location for one in (first, second, third)), FAR) as store:
            first.close()
            stack.enter_context(StoreServer(find_case("typed", 4).shared(), second.location))
            stack.enter_context(StoreServer(typed_case.shared(), third.location))
            check_answers(typed_case, store)


def test_error_names_a_part_without_server(typed_case: Case, servers: list[StoreServer], tmp_path: Path) -> None:
    asked = ", ".join(server.location for server in servers[:2])
    with pytest.raises(
        StoreUnavailable, match=rf"no server holds part 2 of 3 parts \(asked: {asked}\); add the addresses"
    ):
        open_store(f"{servers[0].location},{servers[1].location}", FAR)
    cluster = cluster_of(typed_case, servers)
    first_two = Cluster(dataset_id=cluster.dataset_id, servers=cluster.servers[:2])
    with pytest.raises(
        StoreUnavailable, match=rf"no server holds part 2 of 3 parts \(asked: {asked}\); add the addresses"
    ):
        open_store(write(tmp_path, first_two), FAR)
    outer = Cluster(dataset_id=cluster.dataset_id, servers=(cluster.servers[0], cluster.servers[2]))
    with pytest.raises(FormatError, match=r"cluster\.json names no server for part 1"):
        open_store(write(tmp_path, outer), FAR)


def test_servers_of_another_dataset_are_refused(
    typed_case: Case, servers: list[StoreServer], tmp_path: Path, find_case: Callable[[str, int], Case]
) -> None:
    with StoreServer(find_case("typed", 4).shared()) as other:
        with pytest.raises(VersionMismatch, match="serve the same dataset everywhere"):
            open_store(f"{servers[0].location},{other.location}", FAR)
        entry = ServerEntry(location=other.location, parts=(0, 1, 2))
        path = write(tmp_path, Cluster(dataset_id=typed_case.dataset.manifest.dataset_id, servers=(entry,)))
        with pytest.raises(VersionMismatch, match=f"{other.location} serves dataset .*restart the server"):
            open_store(path, FAR)


@pytest.mark.parametrize("num_silent", [pytest.param(40, marks=pytest.mark.slow), 70])
def test_silent_servers_share_one_deadline(typed_case: Case, num_silent: int) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(num_silent)]
        server = stack.enter_context(StoreServer(typed_case.shared()))
        locations = [f"tcp://127.0.0.1:{each.getsockname()[1]}" for each in silent]
        started = time.monotonic()
        with pytest.raises(StoreTimeout, match=r"gave no answer in .* to describe"):
            open_store(",".join(locations), StoreSettings(prefer_local=False, timeout_s=1))
        assert time.monotonic() - started < 5
        settings = StoreSettings(prefer_local=False, timeout_s=1)
        with open_store(",".join([*locations, server.location]), settings) as store:
            check_answers(typed_case, store)
        assert time.monotonic() - started < 10


def test_a_token_opens_a_cluster(typed_case: Case) -> None:
    with StoreServer(typed_case.shared(), security=ServerSecurity(token="secret")) as server:
        with pytest.raises(AccessDenied, match="token is missing or wrong"):
            open_store(server.location, FAR)
        settings = StoreSettings(prefer_local=False, timeout_s=20, security=ClientSecurity(token="secret"))
        with open_store(server.location, settings) as store:
            check_answers(typed_case, store)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "format list"),
        ({}, "format None"),
        ({"format": 2}, "format 2; this version reads 1"),
        ({"format": 1}, "not a cluster file"),
        ({"format": 1, "dataset_id": "d", "servers": []}, "at least one server"),
        ({"format": 1, "dataset_id": "d", "servers": [3]}, "not a cluster file"),
        ({"format": 1, "dataset_id": "d", "servers": [{"location": DEAD}]}, "not a cluster file"),
        ({"format": 1, "dataset_id": "d", "servers": [{"location": DEAD, "parts": []}]}, "one or more numbers"),
        ({"format": 1, "dataset_id": "d", "servers": [{"location": DEAD, "parts": [-1]}]}, "one or more numbers"),
        ({"format": 1, "dataset_id": "d", "servers": [{"location": DEAD, "parts": ["0"]}]}, "one or more numbers"),
        ({"format": 1, "dataset_id": "d", "servers": [{"location": DEAD, "parts": [1 << 40]}]}, "one or more numbers"),
        ({"format": 1, "dataset_id": "d", "servers": [{"location": "x", "parts": [0]}]}, "write tcp://host:port"),
        ({"format": 1, "dataset_id": "d", "servers": [{"location": DEAD, "parts": [0]}] * 2}, "names a server twice"),
        ({"format": 1, "dataset_id": "d", "servers": [{"location": DEAD, "parts": [1]}]}, "no server for part 0"),
    ],
)  # fmt: skip
def test_invalid_cluster_files_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(FormatError, match=message):
        open_store(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is missing"):
        open_store(tmp_path / "cluster.json")
    for content in (b"{", b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "cluster.json").write_bytes(content)
        with pytest.raises(FormatError, match="is not a cluster file"):
            open_store(tmp_path / "cluster.json")


def test_locations_in_a_list_are_checked() -> None:
    assert [entry.location for entry in parse_locations("tcp://a:1, tls://b:2").servers] == [
        "tcp://a:1", "tls://b:2",
    ]  # fmt: skip
    for text in ("tcp://a:1,", "tcp://a", "http://a:1", "tcp://a:1,tcp://a:1"):
        with pytest.raises(SettingsError):
            parse_locations(text)


def test_a_cluster_file_needs_the_parts_of_every_server(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="parts of every server"):
        write_cluster(tmp_path / "cluster.json", parse_locations(DEAD))
    assert list(tmp_path.iterdir()) == []


def test_servers_of_different_datasets_are_named_by_their_addresses(find_case: Callable[[str, int], Case]) -> None:
    """Also if their folders are local, and would be mapped."""
    cases = [find_case("typed", 3), find_case("typed", 4)]
    with (
        StoreServer(cases[0].shared([0]), path=cases[0].root) as one,
        StoreServer(cases[1].shared([1]), path=cases[1].root) as other,
        pytest.raises(
            VersionMismatch, match=rf"part 1 at {other.location} holds dataset .*; part 0 at {one.location} hol"
        ),
    ):
        open_store(f"{one.location},{other.location}")


def test_error_for_an_address_without_scheme_suggests_one(tmp_path: Path) -> None:
    for text, told in (("127.0.0.1:9", "tcp://127.0.0.1:9"), ("a:1,b:2", "tcp://a:1,tcp://b:2")):
        with pytest.raises(SettingsError, match=f"has no scheme; write {told}, or"):
            open_store(text)
        with pytest.raises(SettingsError, match=f"has no scheme; write {told}, or"):
            read_cluster(Path(text))
    with pytest.raises(SettingsError, match="'b:2' has no scheme; write tcp://b:2"):
        parse_locations("tcp://a:1,b:2")


def test_settings_of_another_kind_are_refused_at_once() -> None:
    told = r"settings is a dict; it must be a StoreSettings: hopstream\.StoreSettings\(timeout_s=…\)"
    with pytest.raises(SettingsError, match=told):
        open_store("tcp://127.0.0.1:1", {"timeout_s": 3})  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=told):
        hopstream.RemoteGraph("tcp://127.0.0.1:1", settings={"timeout_s": 3})  # type: ignore[arg-type]


def test_a_remote_graph_is_refused_as_a_store() -> None:
    graph = hopstream.RemoteGraph("tcp://127.0.0.1:1")

    def walk(source: Any) -> object:
        return hopstream.random_walks(source, [0], walk_length=2)

    def share(source: Any) -> object:
        return hopstream.load.rank_nodes(source, rank=0, world_size=1)

    for ask in (open_store, walk, share):
        with pytest.raises(
            SettingsError, match=r"give the cluster\.json or the addresses that you gave to RemoteGraph"
        ):
            ask(graph)
