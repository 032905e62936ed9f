"""Tests of how machines learn their cluster: environment, process group and readiness file."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hopstream.compat.gigl.distributed import utils
from hopstream.compat.gigl.env import distributed
from hopstream.compat.gigl.env.distributed import DistributedContext, GraphStoreInfo

NUM_COMPUTE, NUM_STORAGE = 3, 2
COUNTS = ("GIGL_GRAPH_STORE_NUM_COMPUTE_NODES", "GIGL_GRAPH_STORE_NUM_STORAGE_NODES")
READINESS = "GIGL_GRAPH_STORE_READINESS_URI"
INFO = GraphStoreInfo(2, 3, "10.0.0.1", "10.0.0.4", "10.0.0.1", 1, 2, 3, 4, 5, 6, "/tmp/ready")
MACHINES = """
import json, os, sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from hopstream.compat.gigl.distributed import utils

folder = Path(sys.argv[1])
ready = Path(os.environ["GIGL_GRAPH_STORE_READINESS_URI"])

def told_by(ask):
    try:
        return ask()
    except ValueError as error:
        return str(error)

def machine(rank):
    os.environ["RANK"] = str(rank)
    where = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=5, timeout=timedelta(seconds=60))
    info = utils.get_graph_store_info()
    os.environ["GIGL_GRAPH_STORE_NUM_STORAGE_NODES"] = "3"
    facts = {
        "info": asdict(info),
        "compute": told_by(lambda: info.compute_node_rank),
        "storage": told_by(lambda: info.storage_node_rank),
        "ips": utils.get_internal_ip_from_all_ranks(),
        "ip": [utils.get_internal_ip_from_master_node(), utils.get_internal_ip_from_node(4)],
        "ports": [utils.get_free_ports_from_master_node(2), utils.get_free_ports_from_node(1, 4)],
        "mismatch": told_by(utils.get_graph_store_info),
        "no such rank": told_by(lambda: utils.get_free_ports_from_node(1, 5)),
    }
    if rank == 3:
        utils.write_readiness_signal(info.readiness_uri)
    utils.wait_for_readiness_signal(info.readiness_uri, timeout=60, poll_interval=0.01)
    (folder / f"{rank}.json").write_text(json.dumps(facts))
    dist.barrier()
    dist.destroy_process_group()

children = []
for rank in range(5):  # forks of one process that has torch already
    child = os.fork()
    if not child:
        code = 1
        try:
            machine(rank)
            code = 0
        finally:
            os._exit(code)
    children.append(child)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


def test_machines_agree_on_their_cluster(tmp_path: Path):
    ready = tmp_path / "ready"
    environment = {
        **os.environ, COUNTS[0]: "3", COUNTS[1]: "2", READINESS: str(ready), "GLOO_SOCKET_IFNAME": "lo",
        "COMPUTE_CLUSTER_LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", MACHINES, str(tmp_path)]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    assert process.returncode == 0, errors
    facts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(NUM_COMPUTE + NUM_STORAGE)]
    own = socket.gethostbyname(socket.gethostname())
    info = GraphStoreInfo(**facts[0]["info"])
    for rank, told in enumerate(facts):
        assert GraphStoreInfo(**told["info"]) == info
        assert told["ips"] == [own] * len(facts)
        assert told["ip"] == [own, own]
        assert told["ports"] == facts[0]["ports"]
        assert "process group has 5 ranks; wanted one for each of 3 compute and 3 storage" in told["mismatch"]
        assert "node_rank is 5" in told["no such rank"]
        if rank < NUM_COMPUTE:
            assert told["compute"] == rank
            assert told["storage"] == f"RANK is {rank}; storage machines are 3..4 of this cluster"
        else:
            assert told["storage"] == rank - NUM_COMPUTE
            assert told["compute"] == f"RANK is {rank}; compute machines are 0..2 of this cluster"
    assert (info.num_compute_nodes, info.num_storage_nodes, info.num_processes_per_compute) == (3, 2, 4)
    assert (info.num_cluster_nodes, info.compute_cluster_world_size) == (5, 12)
    assert {info.cluster_master_ip, info.storage_cluster_master_ip, info.compute_cluster_master_ip} == {own}
    assert info.cluster_master_port != info.compute_cluster_master_port
    assert len({info.storage_cluster_master_port, info.rpc_master_port, info.rpc_wait_port}) == 3
    assert info.readiness_uri == str(ready)
    assert ready.read_bytes() == b"ready"


def test_records_have_their_fields_in_order_and_are_frozen():
    assert [field.name for field in dataclasses.fields(GraphStoreInfo)] == [
        "num_storage_nodes", "num_compute_nodes", "cluster_master_ip", "storage_cluster_master_ip",
        "compute_cluster_master_ip", "cluster_master_port", "storage_cluster_master_port",
        "compute_cluster_master_port", "num_processes_per_compute", "rpc_master_port", "rpc_wait_port",
        "readiness_uri",
    ]  # fmt: skip
    with pytest.raises(dataclasses.FrozenInstanceError):
        INFO.rpc_master_port = 7
    assert DistributedContext("10.0.0.1", 0, 2).global_world_size == 2


@pytest.mark.parametrize("rank", ["-1", "5", "two", None])
def test_a_rank_without_a_machine_is_refused(monkeypatch, rank):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    for name in ("storage_node_rank", "compute_node_rank"):
        with pytest.raises(ValueError, match="RANK is"):
            getattr(INFO, name)


@pytest.fixture
def in_group(monkeypatch):
    """A process that seems to be in a group of five, but never sends to it."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 5)
    monkeypatch.delenv("COMPUTE_CLUSTER_LOCAL_WORLD_SIZE", raising=False)
    for name, value in zip((*COUNTS, READINESS), ("3", "1", "/tmp/ready"), strict=True):
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("in_group")
@pytest.mark.parametrize("kept", [None, *COUNTS, READINESS])
def test_all_variables_are_needed_if_one_is_set(monkeypatch, kept):
    missing = [name for name in (*COUNTS, READINESS) if name != kept]
    for name in missing:
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=f"are not set: {', '.join(missing)}; set all of") as caught:
        utils.get_graph_store_info()
    assert "CLUSTER_SPEC" in str(caught.value)


@pytest.mark.usefixtures("in_group")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (COUNTS[0], "0", "NUM_COMPUTE_NODES is '0'"),
        (COUNTS[1], "two", "NUM_STORAGE_NODES is 'two'"),
        (COUNTS[1], "-1", "NUM_STORAGE_NODES is '-1'"),
        (READINESS, "gs://bucket/ready", "gs://bucket/ready is not on this machine"),
        ("COMPUTE_CLUSTER_LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE is '0'"),
        (COUNTS[1], "1", "has 5 ranks; wanted one for each of 3 compute and 1 storage"),
    ],
)
def test_wrong_variables_are_refused_before_any_request(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        utils.get_graph_store_info()


@pytest.mark.parametrize(
    "ask",
    [
        utils.get_graph_store_info,
        utils.get_internal_ip_from_all_ranks,
        utils.get_internal_ip_from_master_node,
        lambda: utils.get_free_ports_from_master_node(1),
    ],
)
def test_without_a_process_group_lookups_are_refused(ask):
    with pytest.raises(ValueError, match="there is no process group"):
        ask()


def test_names_of_variables():
    names = (distributed.GRAPH_STORE_NUM_COMPUTE_NODES_ENV_KEY, distributed.GRAPH_STORE_NUM_STORAGE_NODES_ENV_KEY)
    assert names == COUNTS
    assert distributed.GRAPH_STORE_READINESS_URI_ENV_KEY == READINESS
    assert distributed.COMPUTE_CLUSTER_LOCAL_WORLD_SIZE_ENV_KEY == "COMPUTE_CLUSTER_LOCAL_WORLD_SIZE"


def test_free_ports_are_different_and_free():
    ports = utils.get_free_ports(20)
    assert len(set(ports)) == 20
    assert utils.get_free_port() > 0
    with pytest.raises(ValueError, match="num_ports is 0"):
        utils.get_free_ports(0)


def test_a_missing_readiness_file_times_out(tmp_path: Path, caplog):
    caplog.set_level("INFO")
    with pytest.raises(TimeoutError, match=r"ready did not exist within 0.03 s; check that servers started"):
        utils.wait_for_readiness_signal(tmp_path / "ready", timeout=0.03, poll_interval=0.001, log_every_n_attempts=5)
    assert 1 <= len(caplog.records) <= 7
    utils.write_readiness_signal(tmp_path / "new" / "ready")
    utils.wait_for_readiness_signal(str(tmp_path / "new" / "ready"), timeout=0.001)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ready"]


@pytest.mark.parametrize("act", [utils.write_readiness_signal, utils.wait_for_readiness_signal])
def test_a_readiness_file_is_no_uri(act):
    with pytest.raises(ValueError, match="gs://bucket/ready is not on this machine"):
        act("gs://bucket/ready")


def test_devices_group_names_and_functions_without_effect(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert utils.get_available_device(3) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [utils.get_available_device(rank).index for rank in range(3)] == [0, 1, 0]
    assert utils.get_process_group_name(2) == "distributed-process-2"
    assert utils.init_neighbor_loader_worker("10.0.0.1", 0, 1, 0, 1, 1234, device=torch.device("cpu")) is None
