#!/usr/bin/env bash
# Starts servers and trainers on several hosts that share only a network.
#
# Run it on every host, with the same list. Host i has part i, in its own copy of the dataset's folder or in a shared
# folder, and runs one server and its trainers:
#
#     HOSTS="host-a host-b" PARTS=parts/mag TOKEN_FILE=token ./torchrun.sh train.py
#
# train.py makes hopstream.RemoteGraph(os.environ["HOPSTREAM_SERVERS"], …). If the name of a host
# is not in the list, set NODE_RANK, from 0. --insecure is for a private network; elsewhere give --tls-cert, --tls-key
# and --peer-ca, and write tls:// for tcp://.
#
# A server runs until the trainers of all hosts have ended, because other hosts need its part. If its own trainers have
# failed, it still waits, for at most END_S. The exit status is that of the trainers, or else that of the server.
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

together() { # starts when all hosts have joined, each with the same id and port
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
until [[ -e $scratch/ready ]]; do # trainers start when the servers of all hosts are ready
    kill -0 "$server" 2>/dev/null || { wait "$server" || exit "$?"; exit 1; }
    sleep 0.1
done

status=0
together train "$rendezvous_port" --nproc-per-node "${TRAINERS:-2}" "$@" || status=$?
together end "$((rendezvous_port + 1))" --rdzv-conf "join_timeout=${END_S:-86400}" --no-python true ||
    echo "not all hosts reported in time that their trainers have ended; the server of this host is stopped anyway" >&2

kill -TERM "$server" 2>/dev/null || true
wait "$server" || status=$((status ? status : $?))
exit "$status"
