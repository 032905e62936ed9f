"""Checks that a fault among several ranks is an error on every rank, in time and with a remedy."""

from __future__ import annotations

import pickle
import re
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from hopstream.compat.pyg import (
    DistContext,
    DistLinkNeighborLoader,
    DistLoader,
    DistNeighborLoader,
    DistNeighborSampler,
    rank_group,
)
from hopstream.compat.pyg.rank_store import check_reach
from hopstream.errors import (
    AccessDenied,
    HopstreamError,
    IdRangeError,
    SchemaError,
    SettingsError,
    StoreTimeout,
    StoreUnavailable,
    VersionMismatch,
)
from hopstream.graph.graph import Graph
from hopstream.schema import EDGE, NODE
from hopstream.store.settings import StoreSettings
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.compat.pyg.ranks import all_well, context, on_ranks, owners_of, partition
from tests.compat.pyg.test_dist_loaders import plain_graph
from tests.ports import free_port
from tests.store.authority import Authority

SOON_S = 0.7


@pytest.fixture(scope="module")
def graph() -> Graph:
    return plain_graph(np.random.default_rng(5))


def load(graph: Graph, rank: int, port: int, *, num_parts: int = 2, data: Any = None, **options: Any) -> Any:
    if data is None:
        data = partition(graph, owners_of(graph, num_parts), rank, num_parts)
    given: dict[str, Any] = {
        "num_neighbors": [-1], "master_addr": "127.0.0.1", "master_port": port, "current_ctx": context(rank, num_parts),
        "rpc_timeout": SOON_S, "batch_size": 4,
    }  # fmt: skip
    return DistNeighborLoader(data, **{**given, **options})


def test_a_missing_rank_is_named_on_every_rank_in_time(graph: Graph) -> None:
    start, port = time.monotonic(), free_port()
    errors = on_ranks(2, lambda rank: load(graph, rank, port, num_parts=3))
    assert time.monotonic() - start < SOON_S + 5
    for rank, error in enumerate(errors):
        assert isinstance(error, StoreTimeout)
        assert f"rank {rank} of 3 waited 0.7 s for all ranks to meet as 'dist-test'" in str(error)
        assert "; rank 2 did not come to 127.0.0.1:" in str(error)
        assert "start all ranks with the same master_addr, master_port, group_name and world_size" in str(error)


def test_closing_loaders_in_another_order_is_an_error_in_time(graph: Graph) -> None:
    port = free_port()

    def work(rank: int) -> list[Any]:
        data = partition(graph, owners_of(graph, 2), rank, 2)
        loaders = [load(graph, rank, port, data=data, rpc_timeout=20) for _ in range(2)]
        for loader in loaders:
            loader._member.group.leave_by(time.monotonic() + 1)
        start = time.monotonic()
        errors: list[Any] = []
        for loader in loaders if rank else reversed(loaders):
            try:
                loader.close()
            except (StoreTimeout, StoreUnavailable) as error:
                errors.append(error)
        assert time.monotonic() - start < 2 * 1 + 5
        return errors

    told = on_ranks(2, work)
    waited = [error for errors in told for error in errors if isinstance(error, StoreTimeout)]
    assert waited, told  # of the rank that gave up first; the other one may be met during its own wait
    for error in waited:
        assert re.search(r"waited [\d.]+ s to leave; rank [01] did not come", str(error))
        assert "let ranks make, use and close the same things in the same order" in str(error)


def test_an_unreachable_master_is_an_error_in_time(graph: Graph) -> None:
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"rank 1 of 2 cannot reach rank 0 at 127.0.0.1:.*start rank 0"):
        load(graph, 1, free_port())
    assert SOON_S - 0.2 < time.monotonic() - start < SOON_S + 5


def test_an_unknown_master_is_an_error(graph: Graph) -> None:
    with pytest.raises(SettingsError, match=r"master_addr 'no-such-host.invalid' is not known"):
        load(graph, 1, free_port(), master_addr="no-such-host.invalid")


def test_a_rank_that_others_cannot_reach_is_named() -> None:
    """The host name resolves to a loopback address, as on Debian."""
    with pytest.raises(StoreUnavailable, match=r"rank 0 serves at tcp://127.0.1.1:5, a loopback .*give all .*IP addr"):
        check_reach(["tcp://127.0.1.1:5", "tcp://10.0.0.2:6"])
    check_reach(["tcp://127.0.0.1:5", "tcp://127.0.0.1:6"])
    check_reach(["tcp://10.0.0.1:5", "tcp://10.0.0.2:5"])


def test_ranks_that_hold_one_part_in_two_ways_are_refused(graph: Graph) -> None:
    port, owners = free_port(), owners_of(graph, 2)

    def work(rank: int) -> Any:
        data = partition(graph, owners, rank % 2, 2)
        if rank == 2:
            data[0].put_tensor(data[0].get_tensor(None, "x") + 1, group_name=None, attr_name="x")
        return load(graph, rank, port, data=data, current_ctx=context(rank, 3), rpc_timeout=20)

    for error in on_ranks(3, work):
        assert isinstance(error, VersionMismatch), error
        assert "ranks 0 and 2 both hold part 0, and the two differ" in str(error)


def test_a_port_in_use_is_an_error_of_rank_0_at_once(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank finds a listener there that does not answer as rank 0 does."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = [0.0, 0.0]

        def work(rank: int) -> Any:
            start = time.monotonic()
            try:
                return load(graph, rank, taken.getsockname()[1], rpc_timeout=1)
            finally:
                ended[rank] = time.monotonic() - start

        errors = on_ranks(2, work)
    assert isinstance(errors[0], StoreUnavailable)
    assert re.search(r"rank 0 cannot listen at .*master_port a free port", str(errors[0]))
    assert ended[0] < 1
    assert isinstance(errors[1], StoreUnavailable)
    assert "rank 1 of 2 cannot reach rank 0" in str(errors[1])
    assert ended[1] < 1 + 5


@pytest.mark.parametrize(
    ("ranks", "sizes", "words"),
    [
        ([0, 1], [2, 3], "rank 1 has world_size 3, but rank 0 has 2; give all ranks the same world_size"),
        ([0, 1, 1], [3, 3, 3], "two processes have rank 1 of 3; give each a rank of its own"),
    ],
)
def test_ranks_that_disagree_get_the_same_error(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, ranks: list[int], sizes: list[int], words: str
) -> None:
    monkeypatch.setattr(rank_group, "own_process", lambda: str(threading.get_ident()))
    start, port = time.monotonic(), free_port()

    def work(number: int) -> Any:
        who = context(ranks[number], sizes[number])
        return load(graph, ranks[number] % 2, port, current_ctx=who, rpc_timeout=20)

    errors = on_ranks(len(ranks), work)
    assert time.monotonic() - start < 10
    assert all(words in str(error) for error in errors), errors
    refused = [error for error in errors if isinstance(error, SettingsError)]
    told = [error for error in errors if isinstance(error, StoreUnavailable)]
    assert (len(refused), len(told)) == (1, len(ranks) - 1), errors
    assert errors[0] in told


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_an_error(graph: Graph, rank: int) -> None:
    outside = DistContext(rank=rank, global_rank=0, world_size=2, global_world_size=2, group_name="g")
    with pytest.raises(SettingsError, match=r"ranks are 0..world_size-1"):
        load(graph, 0, free_port(), current_ctx=outside)


def spoil_features(data: Any) -> None:
    data[0].put_tensor(torch.zeros(3), group_name=None, attr_name="x")


def spoil_edges(data: Any) -> None:
    """A source that is no node."""
    (attr,) = data[1].get_all_edge_attrs()
    row, col = data[1].get_edge_index(attr)
    row = torch.where(torch.arange(len(row)) == 1, 40, row)
    data[1].put_edge_index((row, col), **attr.__dict__)


def spoil_books(data: Any) -> None:
    data[1].node_pb[3] = 7


def spoil_number(data: Any) -> None:
    data[1].partition_idx = 3


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (spoil_features, SchemaError, "node.x has 3 rows"),
        (spoil_edges, IdRangeError, "sources of node__to__node[1] is 40; nodes of 'node' are numbered 0..39"),
        (spoil_books, IdRangeError, "node_pb of 'node'[3] is 7; partitions are numbered 0..2"),
        (spoil_number, IdRangeError, "partition_idx is 3; partitions are numbered 0..2"),
    ],
)
def test_a_rank_with_wrong_data_is_an_error_on_all_ranks(graph: Graph, spoil: Any, error: Any, words: str) -> None:
    port = free_port()

    def work(rank: int) -> Any:
        data = partition(graph, owners_of(graph, 3), rank, 3)
        if rank == 1:
            spoil(data)
        return load(graph, rank, port, data=data, num_parts=3, rpc_timeout=20)

    start = time.monotonic()
    errors = on_ranks(3, work)
    assert time.monotonic() - start < 10
    assert isinstance(errors[1], error)
    assert words in str(errors[1])
    for told in (errors[0], errors[2]):
        assert isinstance(told, StoreUnavailable)
        assert f"rank 1 gave up: {error.__name__}: {errors[1]}" in str(told)


def test_a_rank_that_ends_fails_ranks_that_need_it(graph: Graph) -> None:
    port = free_port()

    def work(rank: int) -> Any:
        loader = load(graph, rank, port, input_nodes=torch.arange(40), rpc_timeout=20, concurrency=1)
        try:
            if rank == 1:
                return None
            ended.wait(10)
            start = time.monotonic()
            try:
                return list(loader)
            finally:
                assert time.monotonic() - start < 10
        finally:
            loader.close(waits=False)
            ended.set()

    ended = threading.Event()
    error = on_ranks(2, work)[0]
    assert isinstance(error, StoreUnavailable)
    assert re.fullmatch(
        "rank 0 cannot continue: rank 1, which held part 1, is gone, or cannot be reached any more; see how it "
        "ended, and start all ranks again",
        str(error),
    )
    assert "part 1 at tcp://127.0.0.1:" in str(error.__cause__)


@pytest.mark.parametrize("handles_error", [False, True])
def test_closing_waits_for_other_ranks(graph: Graph, handles_error: bool) -> None:
    """An error that was handled before the loader was made does not count as the loader's end."""
    port = free_port()

    def train(rank: int) -> int:
        loader = load(graph, rank, port, input_nodes=torch.arange(40), rpc_timeout=20)
        num_batches = sum(len(list(loader)) for _ in range(1 + 3 * rank))
        loader.close()
        loader.close()
        return num_batches

    def work(rank: int) -> int:
        if not handles_error:
            return train(rank)
        try:
            raise FileNotFoundError("no checkpoint to go on from")
        except FileNotFoundError:
            return train(rank)

    assert all_well(on_ranks(2, work)) == [10, 40]


def test_loaders_share_a_port_and_a_block_is_an_epoch(graph: Graph) -> None:
    port = free_port()

    def work(rank: int) -> list[int]:
        first, second = (load(graph, rank, port, input_nodes=torch.arange(n), rpc_timeout=20) for n in (8, 12))
        counts = []
        for loader in (first, second, first):
            with loader as batches:
                counts.append(len(list(batches)))
        with first as batches:
            next(batches)
        for loader in (first, second):
            loader.close()
        return counts

    assert all_well(on_ranks(2, work)) == [[2, 3, 2]] * 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"input_time": [1]}, SettingsError, "input_time needs time_attr="),
        ({"concurrency": 0}, SettingsError, "concurrency is 0"),
        ({"device": "cuda:0"}, SettingsError, "batches are made on the CPU"),
        ({"collate_fn": len}, SettingsError, "transform= is called with each batch"),
        ({"worker_init_fn": len}, SettingsError, "override the method DistLoader.worker_init_fn"),
        ({"no_such_option": 1}, TypeError, "unexpected keyword argument 'no_such_option'"),
        ({"master_port": "http"}, SettingsError, "master_port is 'http'"),
        ({"master_port": 70000}, SettingsError, "master_port is 70000"),
        ({"data": (1, 2)}, SettingsError, "give a pair|give \\(feature_store, graph_store\\)"),
        ({"time_attr": "when"}, SettingsError, "time_attr is 'when', and no tensor"),
        ({"num_workers": -1}, SettingsError, "num_workers"),
        ({"master_addr": "10.255.255.1"}, AccessDenied, "can be reached from other machines"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_without_waiting_for_other_ranks(
    graph: Graph, options: dict[str, Any], error: Any, message: str
) -> None:
    data = options.pop("data", None)
    with pytest.raises(error, match=message):
        load(graph, 0, options.pop("master_port", free_port()), num_parts=1 if "time_attr" in options or data else 2,
             data=data, **options)  # fmt: skip


def test_unknown_seeds_of_a_rank_are_an_error(graph: Graph) -> None:
    with pytest.raises(IdRangeError, match="40"):
        load(graph, 0, free_port(), num_parts=1, input_nodes=torch.tensor([40]))


@pytest.mark.parametrize(
    ("num_parts", "options", "message"),
    [
        (1, {"master_port": 0}, "master_port is 0; it must be an integer from 1 to 65535"),
        (2, {"master_port": True}, "master_port is True; it must be an integer"),
        (1, {"master_addr": ""}, "master_addr is ''; it must be a host name or IP address of rank 0"),
        (2, {"master_addr": 5}, "master_addr is 5; it must be"),
        (1, {"rpc_timeout": 0}, "the time to wait is 0; it must be a number of seconds above 0"),
        (2, {"rpc_timeout": "5"}, "the time to wait is '5'; it must be"),
        (1, {"data": None}, r"data is NoneType; give \(feature_store, graph_store\)"),
        (2, {"data": (1,)}, r"data is tuple; give \(feature_store, graph_store\)"),
    ],
)
def test_bad_group_settings_are_refused_with_one_rank_too(
    graph: Graph, num_parts: int, options: dict[str, Any], message: str
) -> None:
    given = {"data": partition(graph, owners_of(graph, num_parts), 0, num_parts), "master_addr": "127.0.0.1",
             "master_port": free_port(), **options}  # fmt: skip
    with pytest.raises(SettingsError, match=message):
        DistNeighborLoader(num_neighbors=[-1], current_ctx=context(0, num_parts), input_nodes=torch.arange(4), **given)


def test_times_of_links_come_with_time_attr(graph: Graph) -> None:
    data = partition(graph, owners_of(graph, 1), 0, 1, "time")
    with pytest.raises(SettingsError, match="time_attr is given, but edge_label_time is not"):
        DistLinkNeighborLoader(data, [-1], "127.0.0.1", free_port(), context(0, 1), time_attr="time")
    with pytest.raises(SettingsError, match="edge_label_time is given, but time_attr is not"):
        DistLinkNeighborLoader(data, [-1], "127.0.0.1", free_port(), context(0, 1), edge_label_time=[1])


def test_default_seeds_of_a_rank_are_its_own_nodes_and_edges(graph: Graph) -> None:
    port, owners = free_port(), owners_of(graph, 2)

    def work(rank: int) -> tuple[list[int], int]:
        nodes = load(graph, rank, port, rpc_timeout=20)
        links = DistLinkNeighborLoader(
            partition(graph, owners, rank, 2), [-1], "127.0.0.1", port, context(rank, 2), batch_size=7, rpc_timeout=20
        )
        found = [key for batch in nodes for key in batch.n_id[: batch.batch_size].tolist()]
        num_links = sum(batch.edge_label_index.shape[1] for batch in links)
        for loader in (links, nodes):
            loader.close()
        return found, num_links

    for rank, (keys, num_links) in enumerate(all_well(on_ranks(2, work))):
        assert keys == np.flatnonzero(owners[NODE] == rank).tolist()
        assert num_links == int(np.sum(owners[NODE][graph.edges[EDGE].dst_keys] == rank))


def test_transforms_run_where_filter_per_worker_says(graph: Graph) -> None:
    def name_thread(batch: Any) -> str:
        return threading.current_thread().name

    names = {}
    for filters in (False, True):
        loader = load(graph, 0, free_port(), num_parts=1, transform=name_thread, filter_per_worker=filters)
        names[filters] = set(loader)
        loader.close()
    assert names[False] == {threading.current_thread().name}
    assert threading.current_thread().name not in names[True]


@pytest.mark.parametrize("filter_per_worker", [False, True])
def test_a_retry_after_a_failed_transform_begins_with_its_batch(graph: Graph, filter_per_worker: bool) -> None:
    failures: list[Exception] = [ArithmeticError("no luck"), StopIteration()]

    def transform(batch: Any) -> list[int]:
        if batch.input_id[0] >= 20 and failures:
            raise failures.pop(0)
        return batch.n_id.tolist()

    given = {"input_nodes": torch.arange(40), "batch_size": 10, "num_parts": 1, "filter_per_worker": filter_per_worker}
    whole = load(graph, 0, free_port(), **given)
    loader = load(graph, 0, free_port(), transform=transform, **given)
    with pytest.raises(TypeError, match="DistNeighborLoader can be neither pickled nor copied: make one in"):
        pickle.dumps(loader)
    found: list[list[int]] = []
    for error in (ArithmeticError, RuntimeError):
        with pytest.raises(error) as raised:
            found.extend(loader)
        told = (*raised.value.args, *getattr(raised.value, "__notes__", ()))
        assert "while batch 2 of epoch 0 was made (in the transform)" in " ".join(told)
        assert len(found) == 2
    assert found + list(loader) == [batch.n_id.tolist() for batch in whole]
    for one in (whole, loader):
        one.close()


def test_several_ranks_may_hold_one_partition(graph: Graph) -> None:
    port, owners = free_port(), owners_of(graph, 2)

    def work(rank: int) -> list[int]:
        data = partition(graph, owners, rank % 2, 2)
        given = {"current_ctx": context(rank, 3), "input_nodes": torch.arange(40), "batch_size": 40, "rpc_timeout": 20}
        loader = load(graph, rank, port, data=data, **given)
        (batch,) = loader
        loader.close()
        return batch.e_id.tolist()

    first, *others = all_well(on_ranks(3, work))
    assert sorted(first) == list(range(200))
    assert others == [first, first]


def test_ranks_with_certificates_and_a_token_know_each_other(graph: Graph) -> None:
    authority, port = Authority("tests"), free_port()
    identity = authority.issue("rank.example")
    security = ServerSecurity(token="word", certificate=identity.certificate, private_key=identity.key)

    def work(rank: int, token: str) -> int:
        client = ClientSecurity(token=token, roots=authority.root, server_name="rank.example")
        loader = load(
            graph, rank, port, security=security, store_settings=StoreSettings(security=client), rpc_timeout=20,
            master_addr="127.0.0.1", input_nodes=torch.arange(40),
        )  # fmt: skip
        num_batches = len(list(loader))
        loader.close()
        return num_batches

    assert all_well(on_ranks(2, lambda rank: work(rank, "word"))) == [10, 10]
    told, refused = on_ranks(2, lambda rank: work(rank, ["word", "wrong"][rank]))
    assert isinstance(refused, AccessDenied)
    assert isinstance(told, StoreUnavailable)
    assert "rank 1 gave up: AccessDenied" in str(told)


@pytest.mark.parametrize("wrong", [0, 1])
def test_settings_refused_by_one_rank_are_an_error_on_all_ranks(graph: Graph, wrong: int) -> None:
    port, owners = free_port(), owners_of(graph, 2)

    def work(rank: int) -> Any:
        seeds = torch.tensor([10**9 if rank == wrong else 1])
        return DistNeighborLoader(
            partition(graph, owners, rank, 2), [2], "127.0.0.1", port, context(rank, 2), input_nodes=seeds,
            rpc_timeout=20,
        )  # fmt: skip

    start = time.monotonic()
    told = on_ranks(2, work)
    assert time.monotonic() - start < 10
    assert isinstance(told[wrong], IdRangeError)
    assert isinstance(told[1 - wrong], StoreUnavailable)
    assert f"rank {wrong} gave up: IdRangeError: {told[wrong]}" in str(told[1 - wrong])


@pytest.mark.parametrize(("wrong", "waits"), [(0, False), (1, None)])
def test_an_error_in_an_epoch_reaches_all_ranks(graph: Graph, wrong: int, waits: bool | None) -> None:
    """If one of three ranks fails, the others learn at their next batch which rank failed, and why."""
    port, owners = free_port(), owners_of(graph, 3)

    def work(rank: int) -> Any:
        loader = DistNeighborLoader(
            partition(graph, owners, rank, 3), [-1], "127.0.0.1", port, context(rank, 3),
            input_nodes=torch.arange(40), batch_size=4, rpc_timeout=20, async_sampling=rank == 2,
        )  # fmt: skip
        try:
            for number, _ in enumerate(loader):
                if number == 3 and rank == wrong:
                    raise KeyError("no such column")
            while time.monotonic() < start + 10:  # batches sampled ahead need no other rank
                list(loader)
        finally:
            loader.close(waits=waits)

    start = time.monotonic()
    errors = on_ranks(3, work)
    assert time.monotonic() - start < 10
    assert isinstance(errors[wrong], KeyError)
    for rank, error in enumerate(errors):
        if rank != wrong:
            assert isinstance(error, StoreUnavailable)
            assert f"rank {rank} cannot continue: rank {wrong} gave up: KeyError: 'no such column'" in str(error)


def test_a_loader_without_batches_meets_those_with_batches(graph: Graph) -> None:
    port = free_port()

    def work(rank: int) -> int:
        if rank == 1:
            loader = load(graph, rank, port, input_nodes=torch.arange(40), rpc_timeout=20)
            num_batches = len(list(loader))
        else:
            sampler = DistNeighborSampler(context(0, 2), partition(graph, owners_of(graph, 2), 0, 2), [-1])
            loader = DistLoader(context(0, 2), "127.0.0.1", port, rpc_timeout=20, dist_sampler=sampler)
            num_batches = 0
        loader.close()
        return num_batches

    assert all_well(on_ranks(2, work)) == [0, 10]


def test_requests_after_closing_do_not_blame_other_ranks(graph: Graph) -> None:
    port = free_port()

    def work(rank: int) -> Any:
        loader = load(graph, rank, port, input_nodes=torch.arange(40), rpc_timeout=20)
        store, shared = loader.dist_sampler.store, loader.dist_sampler._shared
        loader.close()
        start = time.monotonic()
        with pytest.raises(HopstreamError) as told:
            store.lookup(NODE, np.arange(40))
        slow = StoreTimeout("asked in vain")
        assert shared._explain(slow, [1 - rank]) is slow
        assert time.monotonic() - start < 2
        return str(told.value)

    for told in all_well(on_ranks(2, work)):
        assert "is gone" not in told
