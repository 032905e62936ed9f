"""Loads batches from servers, equal bit for bit to those of a folder, and counts what travels.

    python examples/course/04_servers.py [FOLDER]

``hopstream up`` starts one server per part. The loader asks the servers for neighbours and rows. The picture shows that
sampling several batches together (look-ahead) saves requests, and that a cache of rows saves bytes: one of 4 MiB holds
a quarter of Cora's rows, and one of 32 MiB all of them.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import plots
from processes import up

import hopstream

CORA = Path(__file__).parents[1] / "data" / "cora.npz"
WAYS = {
    "plain": {"cache_bytes": 0, "look_ahead": 0},
    "look-ahead": {"cache_bytes": 0},  # the default: samples many batches together
    "cache of\n4 MiB": {"cache_bytes": "4MiB"},
    "cache of\n32 MiB": {"cache_bytes": "32MiB"},
}
NUM_EPOCHS = 2
# By default a loader maps parts that are on its own machine. Here it sends requests, as if they were on another one.
FROM_SERVERS = hopstream.StoreSettings(prefer_local=False)


def load(source: Path, **options: object) -> tuple[list[bytes], list[tuple[float, float]]]:
    """Load some epochs; return the batches' bytes, and requests and kilobytes per batch of each epoch."""
    contents, traffic, seen = [], [], (0, 0)
    with hopstream.NeighborLoader(source, [10, 5], seeds="test", batch_size=50, shuffle=True, **options) as loader:
        for _ in range(NUM_EPOCHS):
            for batch in loader:
                contents += [batch[name].numpy().tobytes() for name in ("n_id", "edge_index", "x", "y")]
            counts = loader.store.traffic().values()
            total = (sum(c.remote_requests for c in counts), sum(c.remote_bytes for c in counts))
            requests, size = (now - before for now, before in zip(total, seen, strict=True))
            traffic.append((requests / len(loader), size / len(loader) / 1000))
            seen = total
    return contents, traffic


found = {}
with TemporaryDirectory() as folder:
    parts = Path(folder) / "cora"
    hopstream.write_parts(hopstream.read_graph(CORA), parts, num_parts=2)
    wanted, none = load(parts)
    assert none == [(0, 0)] * NUM_EPOCHS  # a folder needs no requests
    with up(parts) as cluster:
        for name, options in WAYS.items():
            contents, found[name] = load(cluster, store_settings=FROM_SERVERS, **options)
            assert contents == wanted
            for epoch, (requests, size) in enumerate(found[name], 1):
                label = name.replace("\n", " ")
                print(f"{label:<15} epoch {epoch}: {requests:4.1f} requests and {size:5.0f} kB per batch")
print(f"{len(wanted) // 4} batches from servers are equal to those of the folder")
requests, sizes = zip(*(epochs[-1] for epochs in found.values()), strict=True)
assert requests[1] < 0.7 * requests[0], requests
assert sizes[2] < 0.7 * sizes[1] and sizes[3] < 0.05 * sizes[1], sizes

figure, axes = plots.panels("Requests per batch", "Kilobytes per batch", width=10.0, height=4.0)
for column, axis in enumerate(axes):
    for epoch, colour in enumerate((plots.ORANGE, plots.BLUE)):
        places = [place + 0.4 * epoch - 0.2 for place in range(len(WAYS))]
        bars = axis.bar(places, [epochs[epoch][column] for epochs in found.values()], 0.38, color=colour)
        axis.bar_label(bars, fmt=("%.1f", "%.0f")[column], padding=2, fontsize=10)
        bars.set_label(f"epoch {epoch + 1}")
    axis.set_xticks(range(len(WAYS)), list(WAYS))
    axis.margins(y=0.1)
axes[1].legend(loc="upper right")
plots.save(figure, __file__)
