#!/usr/bin/env bash
# Samples subgraphs of the papers of Cora, and trains on them with the runner of TF-GNN.
set -euo pipefail
mkdir samples
for split in train test; do
  tfgnn_sampler --graph_schema "$PWD/cora/graph_schema.pbtxt" --sampling_spec tfgnn_spec.pbtxt \
    --input_seeds "$split.csv" --output_samples "samples/$split@2"
  rm -r samples/artifacts
done
python tfgnn_keras.py samples --schema cora/graph_schema.pbtxt --runner
