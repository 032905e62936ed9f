"""Tests of options of sampling workers: defaults, derived values, and refusals."""

from __future__ import annotations

import inspect

import pytest

from hopstream.compat.glt.distributed import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)

_RPC = {"master_addr": None, "master_port": None, "num_rpc_threads": None, "rpc_timeout": 180}
DEFAULTS = {
    CollocatedDistSamplingWorkerOptions: _RPC,
    MpDistSamplingWorkerOptions: {
        "num_workers": 1, "worker_devices": None, "worker_concurrency": 4, **_RPC, "channel_size": None,
        "pin_memory": False,
    },
    RemoteDistSamplingWorkerOptions: {
        "server_rank": None, "num_workers": 1, "worker_devices": None, "worker_concurrency": 4, **_RPC,
        "buffer_size": None, "prefetch_size": 4, "worker_key": None, "glt_graph": None, "workload_type": None,
        "use_all2all": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", DEFAULTS)
def test_arguments_have_their_order_and_defaults(options):
    signature = inspect.signature(options)
    assert {name: each.default for name, each in signature.parameters.items()} == DEFAULTS[options]
    assert list(signature.parameters) == list(DEFAULTS[options])


def test_sizes_and_capacities_follow_from_the_numbers_of_workers():
    remote = RemoteDistSamplingWorkerOptions(server_rank=[0, 1], num_workers=2, worker_concurrency=3)
    assert (remote.buffer_capacity, remote.buffer_size, remote.server_rank) == (6, "128MB", [0, 1])
    several = MpDistSamplingWorkerOptions(3, channel_size="1GB")
    assert (several.channel_capacity, several.channel_size) == (12, "1GB")
    own = CollocatedDistSamplingWorkerOptions("localhost", "1234")
    assert (own.num_workers, own.worker_concurrency) == (1, 1)


def test_batches_in_flight_are_1_to_32():
    assert MpDistSamplingWorkerOptions(worker_concurrency=0).worker_concurrency == 1
    assert MpDistSamplingWorkerOptions(worker_concurrency=99).worker_concurrency == 32


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (RemoteDistSamplingWorkerOptions, {"worker_concurrency": 2}, r"prefetch_size is 4, .* are 2"),
        (RemoteDistSamplingWorkerOptions, {"server_rank": -1}, "server_rank is -1"),
        (RemoteDistSamplingWorkerOptions, {"server_rank": [0, "1"]}, "server_rank is '1'"),
        (MpDistSamplingWorkerOptions, {"num_workers": 0}, "num_workers is 0"),
        (CollocatedDistSamplingWorkerOptions, {"rpc_timeout": 0}, "rpc_timeout is 0"),
    ],
)
def test_wrong_options_are_refused(options, given, message):
    with pytest.raises(ValueError, match=message):
        options(**given)
