#!/usr/bin/env bash
# How are servers and trainers started on several hosts that share nothing but a network?
#
# Run it on every host, with the same list. Each host holds the part of its number, in its own copy of the dataset's
# folder or one that all of them mount, and runs one server and its trainers:
#
#     HOSTS="host-a host-b" PARTS=parts/mag TOKEN_FILE=token ./torchrun.sh train.py
#
# train.py makes hopstream.RemoteGraph(os.environ["HOPSTREAM_SERVERS"], …). A host that is not called as it is listed
# says its place with NODE_RANK, from 0. --insecure is for a network that nobody else reaches; elsewhere give --tls-cert,
# --tls-key and --peer-ca, and write tls:// for tcp://.
#
# A server stays until the trainers of all hosts have ended, because those of others need its part, too: also where its
# own have failed, but for END_S at most. The exit status is that of the trainers, or else that of the server.
set -euo pipefail

read -ra hosts <<<"$HOSTS"
port=${PORT:-7001} rendezvous_port=${RENDEZVOUS_PORT:-29500}
rank=${NODE_RANK:-}
for i in "${!hosts[@]}"; do
    if [[ -z $rank && ${hosts[i]} == "$(hostname)" ]]; then rank=$i; fi
done
: "${rank:?HOSTS is \"$HOSTS\", and this is $(hostname); give NODE_RANK}"
servers=$(printf ",tcp://%s:$port" "${hosts[@]}")
export HOPSTREAM_SERVERS=${servers:1}

together() { # begins when all hosts are there, each with the same word and port
    torchrun --nnodes "${#hosts[@]}" --rdzv-backend c10d --rdzv-id "$1" --rdzv-endpoint "${hosts[0]}:$2" "${@:3}" &
    wait "$!"
}

scratch=$(mktemp -d)
# shellcheck disable=SC2046 # one word per process
trap 'kill -TERM $(jobs -p) 2>/dev/null || true; wait; rm -rf "$scratch"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

hopstream serve "$PARTS" --parts "$rank" --location "tcp://${LISTEN:-0.0.0.0}:$port" --cluster "$HOPSTREAM_SERVERS" \
    --token-file "$TOKEN_FILE" --insecure --log-json --announce "$scratch/ready" &
server=$!
until [[ -e $scratch/ready ]]; do # no trainer begins before all hosts are here, with their servers ready
    kill -0 "$server" 2>/dev/null || { wait "$server" || exit "$?"; exit 1; }
    sleep 0.1
done

status=0
together train "$rendezvous_port" --nproc-per-node "${TRAINERS:-2}" "$@" || status=$?
together end "$((rendezvous_port + 1))" --rdzv-conf "join_timeout=${END_S:-86400}" --no-python true ||
    echo "not every host said in time that its trainers have ended; this one's server is stopped nevertheless" >&2

kill -TERM "$server" 2>/dev/null || true
wait "$server" || status=$((status ? status : $?))
exit "$status"
