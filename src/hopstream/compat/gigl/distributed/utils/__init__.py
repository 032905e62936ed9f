"""Names of ``gigl.distributed.utils``."""

from __future__ import annotations

from hopstream.compat.gigl.distributed.utils.device import get_available_device as get_available_device
from hopstream.compat.gigl.distributed.utils.device import get_process_group_name as get_process_group_name
from hopstream.compat.gigl.distributed.utils.device import init_neighbor_loader_worker as init_neighbor_loader_worker
from hopstream.compat.gigl.distributed.utils.networking import get_free_port as get_free_port
from hopstream.compat.gigl.distributed.utils.networking import get_free_ports as get_free_ports
from hopstream.compat.gigl.distributed.utils.networking import (
    get_free_ports_from_master_node as get_free_ports_from_master_node,
)
from hopstream.compat.gigl.distributed.utils.networking import get_free_ports_from_node as get_free_ports_from_node
from hopstream.compat.gigl.distributed.utils.networking import get_graph_store_info as get_graph_store_info
from hopstream.compat.gigl.distributed.utils.networking import (
    get_internal_ip_from_all_ranks as get_internal_ip_from_all_ranks,
)
from hopstream.compat.gigl.distributed.utils.networking import (
    get_internal_ip_from_master_node as get_internal_ip_from_master_node,
)
from hopstream.compat.gigl.distributed.utils.networking import get_internal_ip_from_node as get_internal_ip_from_node
from hopstream.compat.gigl.distributed.utils.networking import wait_for_readiness_signal as wait_for_readiness_signal
from hopstream.compat.gigl.distributed.utils.networking import write_readiness_signal as write_readiness_signal
from hopstream.compat.gigl.env.distributed import GraphStoreInfo as GraphStoreInfo
