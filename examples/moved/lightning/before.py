"""Trains GraphSAGE on Cora with PyTorch Lightning."""

import sys

import numpy as np
import pytorch_lightning as pl
import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.data.lightning import LightningNodeData
from torch_geometric.nn import GraphSAGE


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
    arrays = np.load(path)
    data = Data(**{name: torch.from_numpy(arrays[name]) for name in arrays})
    datamodule = LightningNodeData(
        data,
        input_train_nodes=data.train_mask,
        input_val_nodes=data.val_mask,
        input_test_nodes=data.test_mask,
        loader="neighbor",
        num_neighbors=[10, 10],
        batch_size=32,
    )
    model = Classifier(data.num_features, 7)
    trainer = pl.Trainer(
        max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, datamodule)
    (result,) = trainer.test(model, datamodule, verbose=False)
    sys.stdout.write(f"test accuracy {result['accuracy']:.3f}\n")


if __name__ == "__main__":
    main(sys.argv[1])
