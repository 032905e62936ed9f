"""Tests of GiGL's public names of graph-store mode: arguments, fields, and the document's tables."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from hopstream.compat.gigl import distributed
from hopstream.compat.gigl.distributed import dist_dataset
from hopstream.compat.gigl.distributed.graph_store import dist_server
from hopstream.compat.gigl.distributed.graph_store import shared_dist_sampling_producer as producer
from hopstream.compat.gigl.distributed.utils import dist_sampler

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "from-glt-gigl.md"
METHODS = {
    "SharedDistSamplingBackend": {
        "describe_channel": "channel_id", "init_backend": "", "is_channel_epoch_done": "channel_id epoch",
        "register_input": "channel_id worker_key sampler_input sampling_config channel", "shutdown": "",
        "start_new_epoch_sampling": "channel_id epoch", "unregister_input": "channel_id",
        "__init__": "data worker_options sampling_config sampler_options degree_tensors",
    },
    "DistServer": {
        "__init__": "dataset log_every_n", "destroy_sampling_input": "channel_id", "exit": "",
        "fetch_one_sampled_message": "channel_id", "get_ablp_input": "request", "get_dataset_meta": "",
        "get_edge_dir": "", "get_edge_feature_info": "", "get_edge_index": "edge_type layout",
        "get_edge_partition_book": "edge_type", "get_edge_size": "edge_type layout", "get_edge_types": "",
        "get_node_feature": "node_type index", "get_node_feature_info": "", "get_node_ids": "request",
        "get_node_label": "node_type index", "get_node_partition_book": "node_type",
        "get_node_partition_id": "node_type index", "get_node_types": "", "get_tensor_size": "node_type",
        "init_sampling_backend": "opts", "register_sampling_input": "opts", "shutdown": "",
        "start_new_epoch_sampling": "channel_id epoch", "wait_for_exit": "",
    },
}  # fmt: skip
FIELDS = {
    producer.RegisterInputCmd: "channel_id worker_key sampler_input sampling_config channel",
    dist_server.ChannelState: "backend_id worker_key channel clients=… used_at=…",
    dist_server.SamplingBackendState: "backend_id backend_key runtime active_channels=… lock=… clients=… used_at=…",
}

REFUSED = (
    "SharedMpCommand", "StartEpochCmd", "CommandPayload", "EPOCH_DONE_EVENT", "SCHEDULER_STATE_LOG_INTERVAL_SECS",
    "SCHEDULER_STATE_MAX_CHANNELS", "ActiveEpochState", "SCHEDULER_TICK_SECS", "R",
)  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_their_arguments(name: str) -> None:
    owner = getattr(producer, name, None) or getattr(dist_server, name)
    for method, arguments in METHODS[name].items():
        given = list(inspect.signature(getattr(owner, method)).parameters)
        assert given == ["self", *arguments.split()], method


@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_records_have_their_fields_in_order(record: type) -> None:
    def shown(field) -> str:
        if field.default_factory is not MISSING:
            return f"{field.name}=…"
        return field.name if field.default is MISSING else f"{field.name}={field.default}"

    assert [shown(field) for field in fields(record)] == FIELDS[record].split()


@pytest.mark.parametrize("name", REFUSED[:-1])
def test_error_for_a_missing_name_names_the_replacement(name: str) -> None:
    with pytest.raises(ImportError, match=rf"{name} is not available: .*describe_channel"):
        exec(f"from {producer.__name__} import {name}")
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = producer.nothing


def test_modules_of_one_name() -> None:
    assert dist_sampler.SamplerInput == producer.SamplerInput
    assert dist_dataset.DistDataset is distributed.DistDataset


def test_constants_have_gigls_values() -> None:
    assert producer.SCHEDULER_SLOW_SUBMIT_SECS == 1.0
    assert (dist_server.SERVER_EXIT_STATUS_CHECK_INTERVAL, dist_server.FETCH_SLOW_LOG_SECS) == (5.0, 1.0)
    assert list(inspect.signature(dist_server.init_server).parameters)[:10] == [
        "num_servers", "server_rank", "dataset", "master_addr", "master_port", "num_clients", "num_rpc_threads",
        "request_timeout", "server_group_name", "is_dynamic",
    ]  # fmt: skip


def test_rows_of_the_documents_tables_have_the_cells_of_their_heads() -> None:
    blocks = [block.splitlines() for block in DOCUMENT.read_text().split("\n\n")]
    tables = [lines for lines in blocks if any(line.startswith("|--") for line in lines)]
    assert len(tables) == 6
    for head, *rows in tables:
        for line in (head, *rows):
            assert line.startswith("| ") or set(line) == {"|", "-"}, line
            assert line.endswith("|"), line
            assert len(re.findall(r"(?<!\\)\|", line)) == head.count("|"), line


def test_the_document_has_every_name() -> None:
    text = DOCUMENT.read_text()
    for names in METHODS.values():
        for name in set(names) - {"__init__"}:
            assert re.search(rf"\b{name}\b", text), name
    for record in FIELDS:
        assert f"`{record.__name__}" in text
    for name in REFUSED:
        assert f"`{name}`" in text and name not in vars(producer) and name not in vars(dist_server)
