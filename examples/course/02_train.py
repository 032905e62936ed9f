"""Trains GraphSAGE on Cora in one process, from a folder of parts.

    python examples/course/02_train.py [FOLDER]

The loop is the one of PyG: a batch holds features, labels and edges, and its seeds come first. The picture shows the
training loss and the validation accuracy of each epoch. The script fails if the test accuracy is below 0.75.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import plots
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from torch_geometric.nn import GraphSAGE

import hopstream

CORA = Path(__file__).parents[1] / "data" / "cora.npz"
NUM_EPOCHS = 20


@torch.no_grad()
def accuracy(model: GraphSAGE, loader: hopstream.NeighborLoader) -> float:
    """Share of seeds with the right label."""
    model.eval()
    right = [model(F.normalize(b.x), b.edge_index)[: b.batch_size].argmax(dim=1) == b.y[: b.batch_size] for b in loader]
    return float(torch.cat(right).float().mean())


torch.manual_seed(0)
torch.set_num_threads(1)  # Cora's matrices are small: threads would wait for each other longer than they compute
model = GraphSAGE(in_channels=1433, hidden_channels=64, num_layers=2, out_channels=7, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
losses, accuracies = [], []
with TemporaryDirectory() as parts:
    hopstream.write_parts(hopstream.read_graph(CORA), parts, num_parts=4, overwrite=True)
    train = hopstream.NeighborLoader(parts, [10, 10], seeds="train", batch_size=64, shuffle=True)
    val = hopstream.NeighborLoader(parts, [-1, -1], seeds="val", batch_size=500)  # -1: all neighbours
    test = hopstream.NeighborLoader(parts, [-1, -1], seeds="test", batch_size=500)
    with train, val, test:
        for epoch in range(NUM_EPOCHS):
            model.train()
            total = 0.0
            for batch in train:
                scores = model(F.normalize(batch.x), batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(scores, batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * batch.batch_size / 140  # the split has 140 nodes
            losses.append(total)
            accuracies.append(accuracy(model, val))
            print(f"epoch {epoch + 1:2}   loss {losses[-1]:.3f}   validation accuracy {accuracies[-1]:.3f}")
        final = accuracy(model, test)
print(f"test accuracy {final:.3f}")
assert final >= 0.75, final

figure, (left, right) = plots.panels("Training loss", "Validation accuracy")
epochs = range(1, NUM_EPOCHS + 1)
left.plot(epochs, losses, color=plots.BLUE, marker="o")
left.set(xlabel="epoch", ylim=(0, None))
right.plot(epochs, accuracies, color=plots.GREEN, marker="o")
right.axhline(final, color=plots.GREY, linestyle="--", label=f"test accuracy at the end: {final:.3f}")
right.set(xlabel="epoch", ylim=(0, 1))
right.legend(loc="lower right")
plots.save(figure, __file__)
