"""Trains GraphSAGE on Cora with PyTorch Lightning."""

import sys

import pytorch_lightning as pl
import torch
from torch.nn import functional
from torch_geometric.nn import GraphSAGE

import hopstream


class Classifier(pl.LightningModule):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.gnn = GraphSAGE(num_features, 64, num_layers=2, out_channels=num_classes, dropout=0.5)

    def seed_scores(self, batch):
        return self.gnn(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]

    def training_step(self, batch, _):
        scores, labels = self.seed_scores(batch)
        return functional.cross_entropy(scores, labels)

    def validation_step(self, batch, _):
        scores, labels = self.seed_scores(batch)
        self.log("accuracy", (scores.argmax(dim=1) == labels).float().mean(), batch_size=len(labels))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=5e-4)


def main(path):
    pl.seed_everything(0)
    train, val, test = (
        hopstream.NeighborLoader(path, [10, 10], split, batch_size=32, shuffle=split == "train")
        for split in ("train", "val", "test")
    )
    model = Classifier(1433, 7)
    trainer = pl.Trainer(
        max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, train, val)
    (result,) = trainer.test(model, test, verbose=False)
    sys.stdout.write(f"test accuracy {result['accuracy']:.3f}\n")


if __name__ == "__main__":
    main(sys.argv[1])
