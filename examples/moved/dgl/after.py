"""Trains GraphSAGE on Cora with DGL's distributed loaders."""

import sys

import torch
from torch.nn import functional
from torch_geometric.nn import SAGEConv

import hopstream.compat.dgl as dgl


class SAGE(torch.nn.Module):
    def __init__(self, num_features, num_hidden, num_classes):
        super().__init__()
        self.first = SAGEConv(num_features, num_hidden)
        self.second = SAGEConv(num_hidden, num_classes)

    def forward(self, blocks, x):
        h = self.first((x, x[: blocks[0].num_dst_nodes()]), torch.stack(blocks[0].edges()))
        h = functional.dropout(functional.relu(h), 0.5, self.training)
        return self.second((h, h[: blocks[1].num_dst_nodes()]), torch.stack(blocks[1].edges()))


def main(part_config):
    torch.manual_seed(0)
    g = dgl.distributed.DistGraph("cora", part_config=part_config)
    book = g.get_partition_book()
    train_nids = dgl.distributed.node_split(g.ndata["train_mask"], book, force_even=True)
    test_nids = dgl.distributed.node_split(g.ndata["test_mask"], book, force_even=True)
    sampler = dgl.dataloading.NeighborSampler([10, 10])
    loader = dgl.dataloading.DistNodeDataLoader(g, train_nids, sampler, batch_size=32, shuffle=True)
    model = SAGE(g.ndata["x"].shape[1], 64, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(10):
        for input_nodes, seeds, blocks in loader:
            scores = model(blocks, g.ndata["x"][input_nodes])
            loss = functional.cross_entropy(scores, g.ndata["y"][seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    num_right = 0
    sampler = dgl.dataloading.NeighborSampler([-1, -1])
    for input_nodes, seeds, blocks in dgl.dataloading.DistNodeDataLoader(g, test_nids, sampler, batch_size=256):
        scores = model(blocks, g.ndata["x"][input_nodes])
        num_right += int((scores.argmax(1) == g.ndata["y"][seeds]).sum())
    sys.stdout.write(f"test accuracy {num_right / len(test_nids):.3f} of {len(test_nids)} nodes\n")


if __name__ == "__main__":
    main(sys.argv[1])
