"""Predicts citations of Cora with LinkNeighborLoader and links that are held out of the graph.

    python examples/course/05_links.py [FOLDER]

``split_links`` chooses a tenth of all links for the test, and ``hold_out_links`` removes them from the graph. So no
message passes along a test link. GraphSAGE scores a link by the product of the states of its two papers. The picture
compares its ROC curve with that of the cosine of the papers' own words. The script fails unless GraphSAGE is better.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plots
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from torch_geometric.nn import GraphSAGE

import hopstream

CORA = Path(__file__).parents[1] / "data" / "cora.npz"
CITES, PREDICT = ("node", "to", "node"), ("node", "would_cite", "node")
NUM_EPOCHS = 3


def roc(scores: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """False positive rates, true positive rates, and the area under the curve."""
    hits = labels[scores.argsort(descending=True, stable=True)].numpy()
    true, false = np.append(0, np.cumsum(hits) / hits.sum()), np.append(0, np.cumsum(1 - hits) / (1 - hits).sum())
    return false, true, float(np.trapezoid(true, false))


def link_loader(parts: Path, split: str, **options: object) -> hopstream.LinkNeighborLoader:
    """Load the links of a split with one negative each; the batch's own links are not followed."""
    return hopstream.LinkNeighborLoader(
        parts, [10, 5], (PREDICT, split), batch_size=256, exclude_links=True, **options,
        neg_sampling=hopstream.NegativeSampling("binary", 1, strict=True),  # negatives are never links
    )  # fmt: skip


torch.manual_seed(0)
torch.set_num_threads(1)
graph = hopstream.split_links(hopstream.read_graph(CORA), CITES, by="pair", val=0, test=0.1)
graph = hopstream.hold_out_links(graph, CITES, PREDICT, splits=("test",))
model = GraphSAGE(in_channels=1433, hidden_channels=64, num_layers=2, out_channels=64)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
found = {"GraphSAGE": [], "own words only": [], "labels": []}
with TemporaryDirectory() as folder:
    parts = Path(folder) / "cora"
    hopstream.write_parts(graph, parts, num_parts=2)
    with link_loader(parts, "train", shuffle=True) as train, link_loader(parts, "test") as test:
        for epoch in range(NUM_EPOCHS):
            losses = []
            for batch in train:
                rows = model(F.normalize(batch["node"].x), batch[CITES].edge_index)
                src, dst = batch[PREDICT].edge_label_index  # slots of the ends: positives first, then negatives
                loss = F.binary_cross_entropy_with_logits((rows[src] * rows[dst]).sum(dim=1), batch[PREDICT].edge_label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch + 1}   loss {sum(losses) / len(losses):.3f}")
        with torch.no_grad():
            for batch in test:
                words, (src, dst) = F.normalize(batch["node"].x), batch[PREDICT].edge_label_index
                rows = model(words, batch[CITES].edge_index)
                found["GraphSAGE"].append((rows[src] * rows[dst]).sum(dim=1))
                found["own words only"].append((words[src] * words[dst]).sum(dim=1))
                found["labels"].append(batch[PREDICT].edge_label)
labels = torch.cat(found.pop("labels"))
curves = {name: roc(torch.cat(scores), labels) for name, scores in found.items()}

figure, (axis,) = plots.panels(f"ROC curve of {int(labels.sum())} held-out links", width=5.4, height=5.2)
for (name, (false, true, area)), colour in zip(curves.items(), (plots.BLUE, plots.ORANGE), strict=True):
    print(f"{name:<15} AUC {area:.3f}")
    axis.plot(false, true, color=colour, label=f"{name}, AUC {area:.3f}")
axis.plot([0, 1], [0, 1], color=plots.GREY, linestyle="--", label="chance, AUC 0.500")
axis.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
axis.legend(loc="lower right")
plots.save(figure, __file__)
assert curves["GraphSAGE"][2] > max(0.85, curves["own words only"][2])
