"""Checks that the stores of one part behave as PyG's do, with ids that are counted per type."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch
from torch_geometric.data import EdgeAttr, TensorAttr

import hopstream
import hopstream.compat.pyg as pyg_dist
from hopstream.errors import IdRangeError, SchemaError, SettingsError, StateError, UnknownNameError
from tests.compat.pyg.graphs import CITES, NUM_NODES, WRITES, heterogeneous, homogeneous

NUM_PARTS = 3


@pytest.fixture(
    scope="module", params=[(make, time) for make in (homogeneous, heterogeneous) for time in ("node", "edge")]
)
def parts(request, tmp_path_factory):
    """A graph with times, and the stores of its parts."""
    make, time = request.param
    root = tmp_path_factory.mktemp("pyg")
    data = make(time)
    pyg_dist.write_partitions(hopstream.graph_from_data(data), root, num_parts=NUM_PARTS, method="random")
    graph_stores = [pyg_dist.LocalGraphStore.from_partition(str(root), part) for part in range(NUM_PARTS)]
    return data, graph_stores, [pyg_dist.LocalFeatureStore.from_partition(root, part) for part in range(NUM_PARTS)]


def of_type(data, group):
    return data if group in (None, (None, None)) else data[group]


def test_edges_have_the_ids_of_their_type(parts):
    """PyG's store has ids of all types together, which its own edge_pb does not know."""
    data, stores, _ = parts
    found = {}
    for part, store in enumerate(stores):
        assert (store.num_partitions, store.partition_idx, store.is_sorted) == (NUM_PARTS, part, True)
        for attr in store.get_all_edge_attrs():
            ids, edge_index = store.get_edge_id(attr), store.get_edge_index(attr)
            assert torch.equal(edge_index, of_type(data, attr.edge_type).edge_index[:, ids])
            assert bool((store.get_partition_ids_from_eids(ids, attr.edge_type) == part).all())
            dst_type = attr.edge_type and attr.edge_type[2]
            assert bool((store.get_partition_ids_from_nids(edge_index[1], dst_type) == part).all())
            found.setdefault(attr.edge_type, []).extend(ids.tolist())
    assert {t: sorted(ids) for t, ids in found.items()} == {t: list(range(of_type(data, t).num_edges)) for t in found}


def test_features_are_found_by_the_ids_of_their_type(parts):
    """PyG's store numbers all node types together and finds wrong rows, or none, beyond the first type."""
    data, _, stores = parts
    for part, store in enumerate(stores):
        assert {t for t, _ in map(store.key, store.get_all_tensor_attrs())} == {
            *(data.node_types if store.meta["is_hetero"] else [None]),
            *(data.edge_types if store.meta["is_hetero"] else [(None, None)]),
        }
        for attr in store.get_all_tensor_attrs():
            ids = store.get_global_id(attr.group_name).flip(0)
            whole = getattr(of_type(data, attr.group_name), attr.attr_name)
            assert torch.equal(store.get_tensor_from_global_id(attr.group_name, attr.attr_name, ids), whole[ids])
            is_node_feat = not isinstance(attr.group_name, tuple)
            if attr.attr_name in ("x", "edge_attr"):
                input_type = attr.group_name if store.meta["is_hetero"] else None
                found = store.lookup_features(ids, is_node_feat, input_type).wait()
                assert torch.equal(found, whole[ids])
            if attr.attr_name == "time":
                assert torch.equal(store.get_tensor(attr), whole)  # of nodes in all parts
        assert store.has_edge_attr() and store.partition_idx == part


def test_rows_of_other_parts_come_in_their_places(parts):
    data, _, stores = parts
    store = stores[1]
    is_hetero = store.meta["is_hetero"]
    asked = []

    def remote_lookup(ids, is_node_feat, input_type):
        asked.append((ids.tolist(), is_node_feat, input_type))
        found = torch.futures.Future()
        whole = of_type(data, input_type).x if is_node_feat else of_type(data, input_type).edge_attr
        threading.Timer(0.01, found.set_result, [whole[ids]]).start()
        return found

    async def look_up(ids, is_node_feat, input_type):
        found = store.lookup_features(ids, is_node_feat, input_type)
        return await asyncio.wait_for(pyg_dist.to_asyncio_future(found), 20)

    store.remote_lookup = remote_lookup
    try:
        for input_type in ["paper", CITES, WRITES] if is_hetero else [None]:
            is_node_feat = not isinstance(input_type, tuple)
            whole = of_type(data, input_type).x if is_node_feat else of_type(data, input_type).edge_attr
            ids = torch.randperm(len(whole), generator=torch.Generator().manual_seed(1)).repeat(2)
            assert torch.equal(asyncio.run(look_up(ids, is_node_feat, input_type)), whole[ids])
            owners = store.node_feat_pb if is_node_feat else store.edge_feat_pb
            owners = owners[input_type] if is_hetero else owners
            assert asked.pop() == (ids[owners[ids] != 1].tolist(), is_node_feat, input_type)
            others = ids[owners[ids] != 1]
            assert torch.equal(asyncio.run(look_up(others, is_node_feat, input_type)), whole[others])
            asked.clear()
    finally:
        store.remote_lookup = None


def test_a_remote_error_fails_the_future():
    store = pyg_dist.LocalFeatureStore.from_data(torch.tensor([0, 1]), torch.rand(2, 3))
    store.num_partitions, store.node_feat_pb = 2, torch.tensor([0, 0, 1])

    def remote_lookup(ids, is_node_feat, input_type):
        found = torch.futures.Future()
        found.set_exception(hopstream.errors.StoreTimeout("part 1 gave no answer in 3 s"))
        return found

    async def look_up():
        return await pyg_dist.to_asyncio_future(store.lookup_features(torch.tensor([1, 2])))

    with pytest.raises(StateError, match=r"node 2 is not in part 0, the only local part"):
        store.lookup_features(torch.tensor([1, 2]))
    store.remote_lookup = remote_lookup
    with pytest.raises(hopstream.errors.StoreTimeout, match=r"no answer in 3 s"):
        asyncio.run(look_up())
    with pytest.raises(hopstream.errors.StoreTimeout):
        store.lookup_features(torch.tensor([1, 2])).wait()


def test_a_timed_out_wait_does_not_disturb_later_waits():
    async def wait():
        future = torch.futures.Future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pyg_dist.to_asyncio_future(future), 0.01)
        future.set_result(1)
        await asyncio.sleep(0.01)
        awaitable = pyg_dist.to_asyncio_future(future)
        assert await awaitable == 1

    asyncio.run(wait())
    with pytest.raises(RuntimeError, match=r"no running event loop"):
        pyg_dist.to_asyncio_future(torch.futures.Future())


def test_edges_are_put_got_and_removed():
    store = pyg_dist.LocalGraphStore()
    edge_index, edge_id = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.arange(4)
    kinds = [(None, "coo"), (("v", "e", "v"), "coo"), (("v", "e", "v"), "csc")]
    for edge_type, layout in kinds:
        assert store.put_edge_index(edge_index, edge_type=edge_type, layout=layout, size=(3, 3))
        assert store.put_edge_id(edge_id, edge_type=edge_type, layout=layout, size=(3, 3))
    assert store.get_all_edge_attrs()[:2] == [EdgeAttr(*kind, size=(3, 3)) for kind in kinds[:2]]
    for left, kind in enumerate(reversed(kinds)):
        attr = EdgeAttr(*kind)
        assert torch.equal(store.get_edge_index(attr), edge_index) and torch.equal(store.get_edge_id(attr), edge_id)
        assert (store.remove_edge_index(attr), store.remove_edge_index(attr)) == (True, False)
        assert (store.remove_edge_id(attr), store.remove_edge_id(attr), store.get_edge_id(attr)) == (True, False, None)
        assert len(store.get_all_edge_attrs()) == 2 - left
    with pytest.raises(KeyError):
        store.get_edge_index(EdgeAttr(None, "coo"))
    with pytest.raises(StateError, match=r"the parts of nodes are not known"):
        store.get_partition_ids_from_nids(torch.tensor([0]))


def test_edges_are_sorted_by_destination():
    edge_index, edge_id = torch.tensor([[1, 2, 0, 1], [1, 0, 2, 0]]), torch.tensor([7, 8, 9, 10])
    store = pyg_dist.LocalGraphStore.from_data(edge_id, edge_index, 3)
    attr = store.get_all_edge_attrs()[0]
    assert store.get_edge_index(attr).tolist() == [[1, 2, 1, 0], [0, 0, 1, 2]]
    assert store.get_edge_id(attr).tolist() == [10, 8, 7, 9] and attr.size == (3, 3)
    typed = {("v", "e", "w"): edge_index}
    store = pyg_dist.LocalGraphStore.from_hetero_data({("v", "e", "w"): edge_id}, typed, {"v": 4, "w": 3}, True)
    attr = store.get_all_edge_attrs()[0]
    assert torch.equal(store.get_edge_index(attr), edge_index) and attr.size == (4, 3)
    with pytest.raises(UnknownNameError, match=r"num_nodes_dict: type 'w' does not exist; known: \['v'\]"):
        pyg_dist.LocalGraphStore.from_hetero_data({("v", "e", "w"): edge_id}, typed, {"v": 4})
    with pytest.raises(SchemaError, match=r"edge_index of the graph is \[2, 4\] and there are 3 edge ids"):
        pyg_dist.LocalGraphStore.from_data(edge_id[:3], edge_index, 3)


def test_tensors_are_put_got_and_removed():
    store = pyg_dist.LocalFeatureStore()
    x = torch.rand(3, 4)
    store.put_global_id(torch.tensor([5, 2, 9]), group_name="paper")
    assert store.put_tensor(x, group_name="paper", attr_name="x")
    assert torch.equal(store["paper", "x", None], x) and store.get_tensor_size(TensorAttr("paper", "x")) == (3, 4)
    assert torch.equal(store.get_tensor("paper", "x", index=torch.tensor([2])), x[2:])
    assert torch.equal(store.get_tensor_from_global_id("paper", "x", torch.tensor([9, 5])), x[[2, 0]])
    assert store.get_tensor_from_global_id("paper", "x", torch.empty(0, dtype=torch.int64)).shape == (0, 4)
    for one in (torch.tensor(9), 9):
        assert torch.equal(store.get_tensor_from_global_id("paper", "x", one), x[2])
    assert torch.equal(store.get_tensor_from_global_id("paper", "x", [[9], [5]]), x[[2, 0]][:, None])
    for wrong in (slice(2), "9", torch.tensor([9.0]), torch.tensor([True])):
        with pytest.raises(SchemaError, match=r"index is .*wanted ids: int64\[n\]"):
            store.get_tensor_from_global_id("paper", "x", wrong)
    with pytest.raises(IdRangeError, match=r"index\[1\] is 3, which is not one of the 3 ids of this part"):
        store.get_tensor_from_global_id("paper", "x", torch.tensor([9, 3]))
    with pytest.raises(IdRangeError, match=r"index\[0\] is 10"):
        store.get_tensor_from_global_id("paper", "x", torch.tensor([10]))
    with pytest.raises(UnknownNameError, match=r"tensor 'y' of nodes 'paper' does not exist"):
        store.get_tensor_from_global_id("paper", "y", torch.tensor([9]))
    with pytest.raises(SchemaError, match=r"ids of nodes 'paper' name 2 twice"):
        store.put_global_id(torch.tensor([2, 1, 2]), group_name="paper")
    assert (store.remove_global_id("paper"), store.remove_global_id("paper")) == (True, False)
    assert store.get_global_id("paper") is None
    with pytest.raises(UnknownNameError, match=r"nodes 'paper' have no global ids"):
        store.get_tensor_from_global_id("paper", "x", torch.tensor([9]))
    assert store.remove_tensor("paper", "x", None) and store.get_all_tensor_attrs() == []
    assert not store.has_edge_attr()


def test_tensors_have_a_row_for_each_id():
    with pytest.raises(SchemaError, match=r"'x' of nodes has 2 rows and there are 3 ids"):
        pyg_dist.LocalFeatureStore.from_data(torch.arange(3), torch.rand(2, 4))
    with pytest.raises(SchemaError, match=r"'edge_attr' of edges is given without ids"):
        pyg_dist.LocalFeatureStore.from_data(torch.arange(3), edge_attr=torch.rand(2, 4))
    for ids in ([5, 9], [1, 2, 5, 9]):
        apart = pyg_dist.LocalFeatureStore()
        apart.put_tensor(torch.rand(3, 2), group_name=None, attr_name="x")
        apart.put_global_id(torch.tensor(ids), group_name=None)
        with pytest.raises(SchemaError, match=rf"'x' of nodes has 3 rows and there are {len(ids)} global ids"):
            apart.get_tensor_from_global_id(group_name=None, attr_name="x", index=torch.tensor([9]))
    store = pyg_dist.LocalFeatureStore.from_hetero_data({t: torch.arange(n) for t, n in NUM_NODES.items()})
    with pytest.raises(UnknownNameError, match=r"input_type is missing; the graph has the types \['author', 'paper'"):
        store.lookup_features(torch.tensor([0]))
    store.num_partitions, store.node_feat_pb = 2, {"paper": torch.zeros(4, dtype=torch.int64)}
    with pytest.raises(UnknownNameError, match=r"type 'author' does not exist"):
        store.lookup_features(torch.tensor([0]), input_type="author")
    for index in ([4], [-1]):
        with pytest.raises(IdRangeError, match=r"index has ids in .*; nodes are 0\.\.3"):
            store.lookup_features(torch.tensor(index), input_type="paper")


NO_IDS = [None, "x", torch.tensor([0.5]), torch.tensor([True]), [[0], [1, 2]]]


@pytest.mark.parametrize("wrong", NO_IDS, ids=["none", "text", "float", "bool", "ragged"])
def test_invalid_ids_are_refused(wrong):
    graph, features = pyg_dist.LocalGraphStore(), pyg_dist.LocalFeatureStore()
    graph.node_pb = graph.edge_pb = torch.zeros(4, dtype=torch.int64)
    for call in (
        graph.get_partition_ids_from_nids, graph.get_partition_ids_from_eids, features.lookup_features,
        lambda ids: graph.put_edge_id(ids, edge_type=None, layout="coo"),
        lambda ids: features.put_global_id(ids, group_name=None),
        lambda ids: pyg_dist.LocalGraphStore.from_data(ids, torch.zeros((2, 1), dtype=torch.int64), 1),
        lambda ids: pyg_dist.LocalGraphStore.from_data(torch.arange(1), ids, 1),
    ):  # fmt: skip
        with pytest.raises(SchemaError, match=r"wanted (ids|\[2, number of ids)"):
            call(wrong)


@pytest.mark.parametrize("ids", [torch.tensor([4]), torch.tensor([0, -1]), [9], 4])
def test_parts_of_unknown_ids_are_refused(ids):
    store = pyg_dist.LocalGraphStore()
    store.node_pb = store.edge_pb = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(IdRangeError, match=r"index has ids in .*; nodes are 0\.\.3"):
        store.get_partition_ids_from_nids(ids)
    with pytest.raises(IdRangeError, match=r"index has ids in .*; edges are 0\.\.3"):
        store.get_partition_ids_from_eids(ids)
    assert store.get_partition_ids_from_nids([0, 3]).tolist() == [0, 0]


def test_invalid_feature_and_edge_tensors_are_refused():
    features, graph = pyg_dist.LocalFeatureStore(), pyg_dist.LocalGraphStore()
    for wrong in (5, None, "x", [1, 2], torch.tensor(3)):
        with pytest.raises(SchemaError, match=r"'x' of nodes is .*; wanted a tensor with a row for each"):
            features.put_tensor(wrong, group_name=None, attr_name="x")
    with pytest.raises(SchemaError, match=r"'x' of nodes is int; wanted a tensor"):
        pyg_dist.LocalFeatureStore.from_data(torch.arange(2), 5)
    features.put_tensor(np.ones((2, 3), np.float32), group_name=None, attr_name="x")
    assert torch.equal(features.get_tensor(group_name=None, attr_name="x", index=None), torch.ones(2, 3))
    ends = torch.arange(3)
    for wrong in ("x", None, (ends,), (ends, torch.arange(2)), (ends, 0.5)):
        with pytest.raises(SchemaError, match="edge_index of the graph"):
            graph.put_edge_index(wrong, edge_type=None, layout="coo")
    assert graph.put_edge_index((ends, torch.arange(2)), edge_type=None, layout="csc")
    for number in (None, "3", -1, True, 1.5):
        with pytest.raises(SettingsError, match=r"num_nodes of the graph is .*; it must be an integer"):
            pyg_dist.LocalGraphStore.from_data(ends, torch.stack([ends, ends]), number)
    for number in (3, np.int64(3), torch.tensor(3)):
        (attr,) = pyg_dist.LocalGraphStore.from_data(ends, torch.stack([ends, ends]), number).get_all_edge_attrs()
        assert attr.size == (3, 3)


def test_names_are_listed():
    assert set(pyg_dist.__all__) <= set(dir(pyg_dist)) and all(hasattr(pyg_dist, name) for name in pyg_dist.__all__)
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'"):
        _ = pyg_dist.nonsense
    assert np.all([name.isidentifier() for name in pyg_dist.__all__])
