#!/usr/bin/env bash
# How are servers and trainers started on several hosts that share nothing but a network?
#
# Run it on every host, with the same list. Each host holds the part of its number, in its own copy of the dataset's
# folder or one that all of them mount, and runs one server and its trainers:
#
#     HOSTS="host-a host-b" PARTS=parts/mag TOKEN_FILE=token ./torchrun.sh train.py
#
# train.py makes hopstream.RemoteGraph(os.environ["HOPSTREAM_SERVERS"], …). --insecure is for a network that nobody else
# reaches; elsewhere give --tls-cert, --tls-key and --peer-ca, and write grpc+tls:// for grpc://.
set -euo pipefail

read -ra hosts <<<"$HOSTS"
port=${PORT:-7001}
rank=${NODE_RANK:-$(for i in "${!hosts[@]}"; do [[ ${hosts[$i]} == "$(hostname)" ]] && echo "$i"; done)}
servers=$(printf ",grpc://%s:$port" "${hosts[@]}")
export HOPSTREAM_SERVERS=${servers:1}

hopstream serve "$PARTS" --parts "$rank" --location "grpc://0.0.0.0:$port" --cluster "$HOPSTREAM_SERVERS" \
    --token-file "$TOKEN_FILE" --insecure --log-json &
server=$!
trap 'kill -TERM "$server" 2>/dev/null; wait "$server"' EXIT

torchrun --nnodes "${#hosts[@]}" --node-rank "$rank" --nproc-per-node "${TRAINERS:-2}" \
    --rdzv-backend c10d --rdzv-endpoint "${hosts[0]}:29500" "$@"
