"""Loads batches from servers, equal bit for bit to those of the folder, with and without a cache of rows.

    python examples/course/04_servers.py [FOLDER]

``hopstream up`` starts one server per part, and the loader asks them for neighbours and rows. The picture counts
requests and bytes per batch in three epochs: without a cache, with one of 4 MiB, which holds a quarter of all rows, and
with one of 32 MiB, which holds all of them.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import plots
from servers import up

import hopstream

CORA = Path(__file__).parents[1] / "data" / "cora.npz"
CACHES = {0: ("no cache", plots.GREY), "4MiB": ("4 MiB", plots.ORANGE), "32MiB": ("32 MiB", plots.BLUE)}
NUM_EPOCHS = 3
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
        for cache_bytes, (name, _) in CACHES.items():
            contents, found[name] = load(cluster, store_settings=FROM_SERVERS, cache_bytes=cache_bytes)
            assert contents == wanted
            for epoch, (requests, size) in enumerate(found[name], 1):
                print(f"{name:<8} epoch {epoch}: {requests:5.1f} requests and {size:7.1f} kB per batch")
print(f"{len(wanted) // 4} batches from servers are equal to those of the folder")
last = {name: epochs[-1][1] for name, epochs in found.items()}
assert last["4 MiB"] < 0.7 * last["no cache"] and last["32 MiB"] < 0.05 * last["no cache"], last

figure, axes = plots.panels("Requests per batch", "Kilobytes per batch")
for column, axis in enumerate(axes):
    for place, (name, colour) in enumerate(CACHES.values()):
        heights = [epoch[column] for epoch in found[name]]
        bars = axis.bar([epoch + 0.29 * (place - 1) for epoch in range(NUM_EPOCHS)], heights, 0.27, color=colour)
        axis.bar_label(bars, fmt="%.1f" if column == 0 else "%.0f", padding=2, fontsize=10)
        bars.set_label(name)
    axis.set(xticks=range(NUM_EPOCHS), xticklabels=[f"epoch {epoch + 1}" for epoch in range(NUM_EPOCHS)])
    axis.margins(y=0.3)
    axis.legend(loc="upper center", ncols=3, columnspacing=1.0, handlelength=1.2)
plots.save(figure, __file__)
