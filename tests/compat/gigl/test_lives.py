"""Tests of the start and end of servers and compute processes: meetings, exits and lost peers."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hopstream.compat.gigl.distributed.graph_store import compute, remote_channel, storage_utils
from hopstream.compat.gigl.distributed.graph_store import dist_server as graph_store_server
from hopstream.compat.gigl.distributed.graph_store.compute import (
    async_request_server,
    init_compute_process,
    request_server,
    shutdown_compute_process,
)
from hopstream.compat.gigl.distributed.graph_store.dist_server import (
    DistServer,
    get_server,
    init_server,
    wait_and_shutdown_server,
)
from hopstream.compat.gigl.distributed.graph_store.messages import (
    FetchNodesRequest,
    InitSamplingBackendRequest,
)
from hopstream.compat.gigl.distributed.graph_store.storage_utils import build_storage_dataset
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions
from hopstream.compat.gigl.distributed.utils.networking import wait_for_readiness_signal
from hopstream.compat.glt.distributed import dist_client, dist_server, roster
from hopstream.compat.glt.distributed.dist_client import Session
from hopstream.compat.glt.distributed.dist_context import DistContext, DistRole, set_context
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.dist_server import StorageServer
from hopstream.compat.glt.distributed.roster import Meeting
from hopstream.errors import (
    AccessDenied,
    FormatError,
    HopstreamError,
    RemoteError,
    SettingsError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.messages import Frame
from tests.compat.gigl.channels import CONFIG, OPTIONS, init, register, registration
from tests.compat.gigl.conftest import WAIT_S, cluster, serving
from tests.compat.gigl.ring import write_ring
from tests.ports import free_port
from tests.transport.peer import carried

SOON_S = 0.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring") / "ring", 2)


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let silent members count as gone soon."""
    for module, names in ((roster, ("GONE_S", "ABANDONED_S")), (dist_server, ("SERVER_EXIT_STATUS_CHECK_INTERVAL",))):
        for name in names:
            monkeypatch.setattr(module, name, SOON_S)
    monkeypatch.setattr(roster, "PRESENT_S", 0.05)


def meeting_at(port: int, timeout_s: float = WAIT_S) -> Meeting:
    return Meeting(master_addr="127.0.0.1", master_port=port, timeout_s=timeout_s)


def start(folder: Path, rank: int, meeting: Meeting, num_clients: int = 0) -> StorageServer:
    dataset = DistDataset(folder, num_partitions=2, partition_idx=rank)
    try:
        return StorageServer(dataset, DistServer(dataset).methods(), meeting, num_clients)
    except BaseException:
        dataset.close()
        raise


@contextmanager
def own_server(folder: Path, **more: Any) -> Iterator[tuple[DistServer, Meeting]]:
    """The only server of a cluster, in this process."""
    port = free_port()
    init_server(1, 0, DistDataset(folder), "127.0.0.1", port, **more)
    try:
        yield get_server(), meeting_at(port)
    finally:
        if dist_server._SERVER is not None:
            get_server().exit()
            wait_and_shutdown_server()


# --- Presence ---------------------------------------------------------------------------------------------------------


class OddOnce:
    """A connection to server 0 whose first answers are malformed."""

    location = "tcp://127.0.0.1:1"

    def __init__(self) -> None:
        self.errors: list[HopstreamError] = [RemoteError("odd"), FormatError("odd"), AccessDenied("odd")]
        self.is_well = threading.Event()

    def ask(self, *_: Any) -> Any:
        if self.errors:
            raise self.errors.pop()
        self.is_well.set()
        return Frame(header={"is_abandoned": False, "clients": ["a"]}, arrays=[])

    def close(self) -> None:
        pass


def test_an_odd_answer_does_not_end_a_members_presence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "PRESENT_S", 0.01)
    channel = OddOnce()
    member = roster.Member(channel, "client", 0)  # type: ignore[arg-type]
    member.stay_present()
    assert channel.is_well.wait(WAIT_S)
    member.close()
    assert member.trouble is None


def test_a_rank_is_one_clients_until_that_is_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_server(folder, num_clients=1) as (_, meeting):
        first = Session(meeting, 0, 1)
        with pytest.raises(StoreUnavailable, match="another client is client 0; give each a rank of its own"):
            Session(replace(meeting, timeout_s=0.3), 0, 1)
        first.close()  # without leaving, like a killed process
        monkeypatch.setattr(roster, "GONE_S", 0.1)
        Session(meeting, 0, 1).leave()
        get_server().wait_for_exit()


def test_a_compute_process_does_not_wait_as_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist_client, "_SESSION", object())
    with pytest.raises(RuntimeError, match="this process is a client; wait_and_shutdown_server is for servers"):
        wait_and_shutdown_server()


def test_only_a_server_waits_for_its_end() -> None:
    set_context(DistContext(DistRole.CLIENT, "clients", 1, 0, 2, 1))
    with pytest.raises(RuntimeError, match="this process is a client; wait_and_shutdown_server is for servers"):
        wait_and_shutdown_server()
    set_context(None)


# --- Meeting ----------------------------------------------------------------------------------------------------------


def test_timeout_names_the_missing_server(folder: Path) -> None:
    meeting = meeting_at(free_port(), SOON_S)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(Session, replace(meeting, timeout_s=SOON_S / 2), 0, 1)
        with pytest.raises(StoreTimeout, match=r"server 0 waited 0\.4 s for all servers to start; missing: 1"):
            start(folder, 0, meeting)
        with pytest.raises((StoreTimeout, StoreUnavailable), match=f"127.0.0.1:{meeting.master_port}"):
            asked.result(WAIT_S)


@pytest.mark.parametrize("role", ["server", "client"])
def test_error_names_the_address_of_a_missing_server_0(folder: Path, role: str) -> None:
    meeting = meeting_at(free_port(), SOON_S)
    with pytest.raises((StoreTimeout, StoreUnavailable), match=f"127.0.0.1:{meeting.master_port}"):
        start(folder, 1, meeting) if role == "server" else Session(meeting, 0, 1)


def told(kept: roster.Roster, step: str, role: str, rank: int, **more: Any) -> dict[str, Any]:
    """The answer of a roster to a member that is called as its rank, or as ``name``."""
    header = {"op": "roster", "role": role, "rank": rank, "name": f"{rank}", "step": step, **more}
    return carried(next(kept._answer(carried(Frame(header))))).header


def test_servers_that_disagree_are_refused() -> None:
    kept = roster.Roster(1)
    join = partial(told, kept, "join", "server")
    assert join(0, location="tcp://a:1", num_servers=1)["locations"] == ["tcp://a:1"]
    with pytest.raises(SettingsError, match=r"two servers have rank 0: tcp://a:1 and tcp://b:1"):
        join(0, name="other", location="tcp://b:1", num_servers=1)
    for rank, num_servers in ((0, 3), (1, 1)):
        with pytest.raises(SettingsError, match="joined a session of 1 servers"):
            join(rank, name="other", location="tcp://b:1", num_servers=num_servers)
    assert join(0, location="tcp://a:1", num_servers=1)["locations"] == ["tcp://a:1"]


def test_a_client_lost_while_leaving_does_not_stop_servers() -> None:
    kept = roster.Roster(1, 2)
    for rank in range(2):
        told(kept, "join", "client", rank)
    assert told(kept, "leave", "client", 0, num_clients=2)["missing"] == [1]
    kept._named["0"].seen_at -= roster.GONE_S + 1.0  # client 0 says nothing any more
    answer = told(kept, "leave", "client", 1, num_clients=2)
    assert (answer["missing"], answer["tells"], answer["is_abandoned"]) == ([], True, False)


@pytest.mark.parametrize(
    "wrong", [{"role": "owner"}, {"rank": -1}, {"rank": "0"}, {"rank": 1 << 40}, {"num_clients": 10**12}, {"name": 1}]
)
def test_a_roster_refuses_invalid_messages(wrong: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=f"header field '{next(iter(wrong))}'"):
        told(roster.Roster(1), "leave", **({"role": "client", "rank": 0, "num_clients": 1} | wrong))


def test_a_server_answers_before_it_knows_its_peers(folder: Path) -> None:
    meeting = meeting_at(free_port())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(start, folder, 0, meeting)
        dataset = DistDataset(folder, num_partitions=2, partition_idx=1)
        server = DistServer(dataset)
        answers: list[Future[torch.Tensor]] = []
        real = roster.Member.join

        def join(member: roster.Member, *args: Any, **more: Any) -> list[str]:
            """Ask before the answer comes."""
            if more.get("location") is not None and member._rank == 1:
                answers.append(pool.submit(server.get_node_ids, FetchNodesRequest(split="train")))
            return real(member, *args, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(roster.Member, "join", join)
            second = StorageServer(dataset, server.methods(), meeting)
        assert len(answers[0].result(WAIT_S))
        second.close()
        first.result(WAIT_S).close()


# --- Leaving ----------------------------------------------------------------------------------------------------------


def leave_all(sessions: list[Session]) -> None:
    with ThreadPoolExecutor(len(sessions)) as pool:
        for one in [pool.submit(session.leave) for session in sessions]:
            one.result(WAIT_S)


def test_servers_end_when_the_last_client_leaves(folder: Path) -> None:
    with serving(folder, 2) as served:
        sessions = [served.session(rank, 3) for rank in range(3)]
        with ThreadPoolExecutor(2) as pool:
            leaving = [pool.submit(session.leave) for session in sessions[:2]]
            assert not any(server._exit.wait(SOON_S / 4) for server in served.servers)
            sessions[2].leave()
            for one in leaving:
                one.result(WAIT_S)
        assert all(server._exit.is_set() for server in served.servers)
        with pytest.raises(StoreUnavailable, match=r"session has ended|127\.0\.0\.1"):
            Session(replace(served.meeting, timeout_s=SOON_S), 0, 3)


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("gone", [0, 1])
def test_lost_clients_are_not_waited_for(folder: Path, gone: int) -> None:
    with serving(folder, 2) as served:
        sessions = [served.session(rank, 2) for rank in range(2)]
        sessions[gone].close()
        sessions[1 - gone].leave()
        assert all(server._exit.is_set() for server in served.servers)


def test_a_client_that_stays_is_waited_for_and_then_named(folder: Path) -> None:
    with serving(folder, 2) as served:
        stays, leaves = served.session(0, 2), served.session(1, 2)
        with pytest.raises(StoreTimeout, match=r"client 1 waited 0\.4 s for the other clients to leave; missing: 0"):
            leaves.leave(SOON_S)
        assert not any(server._exit.is_set() for server in served.servers)
        stays.leave()
        assert all(server._exit.is_set() for server in served.servers)


def test_clients_that_have_not_joined_are_waited_for(folder: Path) -> None:
    with serving(folder, 2) as served, ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(served.session(0, 2).leave)
        assert not any(server._exit.wait(SOON_S / 4) for server in served.servers)
        served.session(1, 2).leave()
        leaving.result(WAIT_S)
        assert all(server._exit.is_set() for server in served.servers)


@pytest.mark.parametrize("ranks", [[0], [1], [2, 1]])
def test_absent_clients_count_as_gone_after_the_first_deadline(folder: Path, ranks: list[int]) -> None:
    with serving(folder, 2) as served, ThreadPoolExecutor(2) as pool:
        first, *others = [served.session(rank, 3) for rank in ranks]
        waiting = [pool.submit(session.leave) for session in others]
        first.leave(SOON_S)
        for one in waiting:
            one.result(WAIT_S)
        assert all(server._exit.is_set() for server in served.servers)


@pytest.mark.usefixtures("briefly")
def test_a_client_that_is_killed_loses_its_channels_and_no_other_one_does(folder: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(graph_store_server, "LEASE_S", 2 * SOON_S)
    monkeypatch.setattr(dist_server, "SERVER_EXIT_STATUS_CHECK_INTERVAL", 0.05)
    with own_server(folder, num_clients=2) as (server, meeting), ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        stack.callback(server.exit)
        ending = pool.submit(wait_and_shutdown_server)
        killed, idle = (Session(meeting, rank, 2) for rank in range(2))
        request = InitSamplingBackendRequest("loader", OPTIONS, KHopNeighborSamplerOptions([2, 2]), CONFIG)
        channels = []
        for rank, session in enumerate((killed, idle)):
            backend = session.request(0, "init_sampling_backend", request)
            given = registration(backend, range(8), f"rank_{rank}")
            channels.append(session.request(0, "register_sampling_input", given))
            session.request(0, "start_new_epoch_sampling", channels[-1], 0)
        assert channels == server.left
        is_gone = threading.Event()
        real = server._destroy

        def destroy(*given: Any) -> None:
            real(*given)
            is_gone.set()

        monkeypatch.setattr(server, "_destroy", destroy)
        killed.close()
        assert is_gone.wait(WAIT_S)
        assert server.left == channels[1:]
        assert f"channel {channels[0]} (rank_0) is dropped" in caplog.text
        message, is_done = idle.request(0, "fetch_one_sampled_message", channels[1])
        assert message["batch"].tolist() == [0, 1, 2, 3] and not is_done
        idle.request(0, "destroy_sampling_input", channels[1])
        idle.leave()
        ending.result(WAIT_S)


def test_a_server_of_the_next_session_waits_until_the_last_one_has_ended(folder: Path) -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        old = [one.result(WAIT_S) for one in [pool.submit(start, folder, rank, meeting_at(port)) for rank in range(2)]]
        left = pool.submit(old[1].leave, WAIT_S)
        old[0].leave(WAIT_S)
        left.result(WAIT_S)
        old[1].close()
        with pytest.raises((StoreUnavailable, StoreTimeout), match=r"session has ended|127\.0\.0\.1"):
            start(folder, 1, meeting_at(port, SOON_S))
        coming = pool.submit(start, folder, 1, meeting_at(port))
        old[0].close()
        new = start(folder, 0, meeting_at(port))
        for server in (coming.result(WAIT_S), new):
            server.close()


# --- One server's life ------------------------------------------------------------------------------------------------


def test_a_process_has_one_server_of_the_dataset_s_rank(folder: Path) -> None:
    dataset = DistDataset(folder)
    for num_servers, rank in ((2, 0), (2, 1), (1, 1)):
        with pytest.raises(ValueError, match=f"server {rank} of {num_servers} has partition 0 of 1"):
            init_server(num_servers, rank, dataset, "127.0.0.1", 1)
    dataset.close()
    with own_server(folder) as (server, _):
        with pytest.raises(RuntimeError, match="this process has a server already"):
            init_server(1, 0, server.dataset, "127.0.0.1", 1)
        assert get_server() is server
    with pytest.raises(RuntimeError, match="not initialized"):
        get_server()


def test_error_names_an_address_in_use(folder: Path) -> None:
    with own_server(folder) as (_, meeting):
        server, dist_server._SERVER = dist_server._SERVER, None
        try:
            with pytest.raises(StoreUnavailable, match=f"{meeting.master_port}"):
                init_server(1, 0, DistDataset(folder), "127.0.0.1", meeting.master_port)
        finally:
            dist_server._SERVER = server


def test_a_channel_that_was_left_ends_the_server_with_an_error(folder: Path) -> None:
    with own_server(folder) as (server, _):
        channel = register(server, init(server), range(8))
        server.start_new_epoch_sampling(channel, 0)
        server.exit()
        with pytest.raises(RuntimeError, match=f"left channels: {channel}; call shutdown"):
            wait_and_shutdown_server()


@pytest.mark.usefixtures("briefly")
def test_a_server_ends_when_all_clients_that_are_counted_are_gone(folder: Path) -> None:
    with own_server(folder, num_clients=2) as (_, meeting):
        Session(meeting, 1, 2).close()
        with pytest.raises(RuntimeError, match="all compute processes are gone"):
            wait_and_shutdown_server()


@pytest.mark.usefixtures("briefly")
def test_a_dynamic_server_keeps_running_between_clients(folder: Path) -> None:
    with own_server(folder, num_clients=2, is_dynamic=True) as (server, meeting):
        Session(meeting, 0, 0).close()
        threading.Event().wait(2 * SOON_S)
        assert dist_server._STORAGE is not None and dist_server._STORAGE.trouble is None
        Session(meeting, 0, 0).leave()
        assert server._exit.is_set()


@pytest.mark.usefixtures("briefly")
def test_a_server_ends_when_server_0_is_gone(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(roster, "SLACK_S", 1.0)
    meeting, dataset = meeting_at(free_port()), DistDataset(folder, num_partitions=2, partition_idx=1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(start, folder, 0, meeting)
        init_server(2, 1, dataset, "127.0.0.1", meeting.master_port)
        first.result(WAIT_S).close()
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=f"server 0 at .*{meeting.master_port} has not answered"):
        wait_and_shutdown_server()
    assert time.monotonic() - started < WAIT_S


@pytest.mark.usefixtures("briefly")
def test_a_server_ends_with_its_parent_process(folder: Path, monkeypatch) -> None:
    class Ended:
        def is_alive(self) -> bool:
            return False

    monkeypatch.setattr(dist_server.multiprocessing, "parent_process", Ended)
    with own_server(folder), pytest.raises(RuntimeError, match="the process that started this server has ended"):
        wait_and_shutdown_server()


# --- One compute process's life ---------------------------------------------------------------------------------------


def test_a_compute_process_joins_once_and_leaves(folder: Path, tmp_path: Path, monkeypatch) -> None:
    ready = tmp_path / "ready"
    ready.write_text("ready")
    monkeypatch.setenv("RANK", "0")
    with serving(folder, 2) as served:
        info = replace(
            cluster(2, served.meeting.master_port, ready=str(ready)), compute_cluster_master_port=free_port()
        )
        init_compute_process(0, info, "gloo")
        assert torch.distributed.get_rank() == 0 and torch.distributed.get_world_size() == 1
        with pytest.raises(ValueError, match="a process group exists already"):
            init_compute_process(0, info, "gloo")
        torch.distributed.destroy_process_group()
        with pytest.raises(ValueError, match="this process has a session already"):
            init_compute_process(0, info, "gloo")
        with pytest.raises(ValueError, match="split is 'later'"):
            request_server(1, DistServer.get_node_ids, FetchNodesRequest(split="later"))
        with pytest.raises(ValueError, match="is homogeneous"):
            async_request_server(1, DistServer.get_node_ids, FetchNodesRequest(node_type="node")).wait()
        shutdown_compute_process()
        assert all(server._exit.is_set() for server in served.servers)
    for call in (shutdown_compute_process, lambda: request_server(0, "get_edge_dir")):
        with pytest.raises(RuntimeError, match="call init_compute_process first"):
            call()


@pytest.mark.parametrize(
    ("machine", "local_rank", "message"),
    [("2", 0, "RANK is 2; compute machines are 0..1"), ("1", 1, "local_rank is 1")],
)
def test_ranks_out_of_range(monkeypatch, machine: str, local_rank: int, message: str) -> None:
    monkeypatch.setenv("RANK", machine)
    with pytest.raises(ValueError, match=message):
        init_compute_process(local_rank, cluster(2, num_compute=2))
    with pytest.raises(ValueError, match=r"storage machines are 2\.\.3"):
        monkeypatch.setenv("RANK", "4")
        _ = cluster(2, num_compute=2).storage_node_rank


def test_servers_that_do_not_become_ready_in_time(tmp_path: Path, monkeypatch) -> None:
    """The wait may take an hour, as at GiGL, even with short timeouts of requests."""
    monkeypatch.setenv("RANK", "0")
    waits = inspect.signature(compute.wait_for_readiness_signal).bind("ready", poll_interval=0.2)
    waits.apply_defaults()
    assert waits.arguments["timeout"] == 3600.0

    def wait(path: str, **options: float) -> None:
        assert "timeout" not in options
        wait_for_readiness_signal(path, timeout=0.01, **options)

    monkeypatch.setattr(compute, "wait_for_readiness_signal", wait)
    with pytest.raises(TimeoutError, match="check that servers started"):
        init_compute_process(0, cluster(1, ready=str(tmp_path / "none")), rpc_timeout=1)
    assert dist_client._SESSION is None and not torch.distributed.is_initialized()


def test_compute_ranks_wait_for_each_other_until_a_deadline(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """The rank that waits too long raises an error, and leaves without telling others."""
    (tmp_path / "ready").write_text("ready")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(compute, "GROUP_S", SOON_S)
    with serving(folder, 1) as served:
        info = replace(
            cluster(1, served.meeting.master_port, num_compute=2, ready=str(tmp_path / "ready")),
            compute_cluster_master_port=free_port(),
        )
        with pytest.raises(torch.distributed.DistError):
            init_compute_process(0, info, "gloo")
        assert dist_client._SESSION is None and not torch.distributed.is_initialized()


def test_a_message_timeout_names_the_servers(monkeypatch) -> None:
    class Silent:
        def submit(self, *_: Any) -> Future[Any]:
            return Future()

    monkeypatch.setattr(dist_client, "_SESSION", Silent())
    monkeypatch.setattr(remote_channel, "RECV_S", 0.01)
    channel = remote_channel.RemoteReceivingChannel([2, 5, 7], [1, 1, 1], active_mask=[True, False, True])
    with pytest.raises(StoreTimeout, match=r"no message came in 0\.01 s from servers 2, 7; see their logs"):
        channel.recv()


def test_a_request_that_was_never_sent_is_answered_with_an_error(connect, folder: Path, monkeypatch) -> None:
    connect(folder, 1)
    cancelled: Future[Any] = Future()
    cancelled.cancel()
    monkeypatch.setattr(Session, "submit", lambda *args: cancelled)
    with pytest.raises(StoreUnavailable, match="the session ended before server 0 received the request"):
        async_request_server(0, "get_edge_dir").wait()


def test_a_storage_dataset_needs_to_know_its_rank(folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no process group of storage machines"):
        build_storage_dataset(folder, "in")
    build_storage_dataset(folder, "out", rank=1, world_size=2).close()
    for options, message in (
        ({"rank": 2, "world_size": 2}, "rank is 2; it must be an integer, 0 to 1"),
        ({"rank": 0, "world_size": 3}, "has 2"),
    ):
        with pytest.raises(ValueError, match=message):
            build_storage_dataset(folder, "in", **options)


def test_run_storage_server_passes_its_arguments_to_the_process(folder: Path, tmp_path: Path, monkeypatch) -> None:
    found: list[tuple[SamplingLimits, int | None]] = []

    def wait() -> None:
        storage, server = dist_server._STORAGE, get_server()
        assert storage is not None
        found.append((storage._service._limits, server.dataset.max_labels_per_anchor_node))
        server.exit()
        wait_and_shutdown_server()

    class Here:
        """A process replaced by a function call; its arguments are passed as those of a process."""

        exitcode: int | None = None

        def __init__(self, *, target: Any, args: tuple[Any, ...], name: str) -> None:
            self._call = partial(target, *ForkingPickler.loads(ForkingPickler.dumps(args)))

        def start(self) -> None:
            self._call()
            self.exitcode = 0

        def join(self, timeout_s: float | None) -> None:
            assert timeout_s is None

    monkeypatch.setattr(storage_utils.multiprocessing, "get_context", lambda _: SimpleNamespace(Process=Here))
    monkeypatch.setattr(storage_utils, "wait_and_shutdown_server", wait)
    info = cluster(1, free_port(), ready=str(tmp_path / "ready"))
    dataset = build_storage_dataset(folder, "in", max_labels_per_anchor_node=3, rank=0, world_size=1)
    limits = SamplingLimits(threads=1, max_channels=5)
    storage_utils.run_storage_server(0, info, dataset, 1, limits=limits)
    assert found == [(limits, 3)]
