"""Are labels that the graph still holds elsewhere kept out of the message graph of the batch that they are to train?"""

from __future__ import annotations

import numpy as np
import pytest

import hopstream
from hopstream.load.ablp import ABLPLoader
from hopstream.store.contract import KEY, FetchRequest, SampleRequest

RATES, RATED_BY = ("user", "rates", "movie"), ("movie", "rev_rates", "user")
PREDICT = ("user", "predict", "movie")


@pytest.fixture(scope="module", params=[1, 3])
def folder(request, tmp_path_factory):
    """Ratings and their reverses; the training links are in both and in the edge type that is to be predicted."""
    rng = np.random.default_rng(9)
    pairs = np.unique(rng.integers(0, [[60], [30]], (2, 500)), axis=1)
    graph = hopstream.graph_from_arrays({RATES: pairs, RATED_BY: pairs[::-1]}, num_nodes={"user": 60, "movie": 30})
    graph = hopstream.hold_out_links(hopstream.split_links(graph, RATES, by="pair"), RATES, PREDICT)
    path = tmp_path_factory.mktemp("leaks") / "parts"
    hopstream.write_parts(graph, path, num_parts=request.param, method="random", direction="both")
    return path


@pytest.mark.parametrize("label_direction", ["out", "in"])
def test_labels_of_a_batch_are_not_among_its_message_edges(folder, label_direction):
    with hopstream.open_store(folder) as store:
        links = store.links(PREDICT, store.edge_split(PREDICT, "train"))
        train = set(zip(links.src_keys.tolist(), links.dst_keys.tolist(), strict=True))
        held = set(edges_of(store, RATES))
        assert len(train & held) == len(train)  # or nothing could leak
    num_labels = num_followed = 0
    with ABLPLoader(
        folder, [-1, -1], supervision=PREDICT, label_direction=label_direction, batch_size=7, collate="numpy"
    ) as loader:
        for batch in loader:
            anchors, found = batch.attributes[PREDICT]["y_positive"]
            users, movies = (anchors, found) if label_direction == "out" else (found, anchors)
            keys = batch.node_keys
            labels = set(zip(keys["user"][users].tolist(), keys["movie"][movies].tolist(), strict=True))
            num_labels += len(labels)
            for edge_type, (src, dst) in batch.edge_index.items():
                user, movie = (src, dst) if edge_type[0] == "user" else (dst, src)
                seen = set(zip(keys["user"][user].tolist(), keys["movie"][movie].tolist(), strict=True))
                num_followed += len(seen)
                assert not seen & labels, edge_type
    assert num_labels > 300
    assert num_followed > 0


def edges_of(store, edge_type):
    """Every edge of a type by the keys of its ends."""
    ids = np.arange(store.book.num_ids(edge_type[2]))
    (reply,) = store.sample([SampleRequest(edge_type=edge_type, direction="in", ids=ids, count=-1)])
    keys = {t: keys_of(store, t) for t in (edge_type[0], edge_type[2])}
    src = keys[edge_type[0]][reply.neighbor_ids.astype(np.int64)]
    return zip(src.tolist(), keys[edge_type[2]][np.repeat(ids, reply.counts)].tolist(), strict=True)


def keys_of(store, node_type):
    ids = np.arange(store.book.num_ids(node_type))
    (columns,) = store.fetch([FetchRequest(owner=node_type, names=(KEY,), ids=ids)])
    return columns[KEY]
