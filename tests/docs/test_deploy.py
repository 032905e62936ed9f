"""Checks that the files for clusters run, and agree with the commands they start."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
import yaml

import hopstream
from hopstream.dataset.layout import open_dataset
from hopstream.errors import AccessDenied, StoreUnavailable
from hopstream.graph.graph import Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.stream.metrics import MetricsServer
from hopstream.transport.security import ServerSecurity
from hopstream.transport.tokens import read_token, read_tokens
from tests.load.graphs import make_timed_graph
from tests.ports import free_port, free_ports
from tests.store.processes import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2")
DEADLINE_S = 180.0
DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
MANIFEST = DEPLOY / "kubernetes.yaml"
DOCKERFILE = DEPLOY / "Dockerfile"
ROOT = DEPLOY.parents[1]


@pytest.fixture(scope="module")
def serve_options() -> set[str]:
    """Every option of ``hopstream serve``."""
    told = subprocess.run(
        [sys.executable, "-m", "hopstream.cli", "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    return set(re.findall(r"--[a-z][a-z-]*", told))


def options_of(command: str) -> set[str]:
    words = shlex.split(command.replace("\\\n", " "))
    return {word.partition("=")[0] for word in words[words.index("serve") :] if word.startswith("--")}


def test_the_script_for_torchrun_uses_valid_server_options(serve_options):
    path = DEPLOY / "torchrun.sh"
    subprocess.run(["bash", "-n", path], check=True)
    (command,) = re.findall(r"^hopstream serve(?:.*\\\n)*.*$", path.read_text(), re.MULTILINE)
    assert options_of(command.removesuffix("&")) <= serve_options
    assert {"--parts", "--location", "--cluster"} <= options_of(command.removesuffix("&"))


class Host:
    """``torchrun.sh`` on one of two hosts, which are two loopback addresses of this machine."""

    def __init__(self, folder: Path, number: int, ports: dict[str, int], *words: object, **more: str) -> None:
        programs = folder / f"bin-{number}"
        programs.mkdir()
        write_program(programs / "hostname", f"echo {HOSTS[number]}")  # so that it finds its place in the list
        for name, text in more.items():
            write_program(programs / name, text)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text("open-sesame")
        settings = {
            "HOSTS": " ".join(HOSTS), "LISTEN": HOSTS[number], "PARTS": folder / "parts",
            "TOKEN_FILE": folder / "token", "TRAINERS": 1, "END_S": 120, **ports, "OMP_NUM_THREADS": 1,
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
        environment.pop("NODE_RANK", None)
        self._log = (folder / f"log-{number}").open("w+")
        self._process = subprocess.Popen(
            [DEPLOY / "torchrun.sh", *map(str, words)], env=environment, cwd=folder, stdout=self._log, stderr=self._log
        )

    def wait(self) -> tuple[int, str]:
        """Wait for the script to end; return its exit status and output."""
        status = self._process.wait(DEADLINE_S)
        self._log.seek(0)
        return status, self._log.read()

    def terminate(self) -> None:
        self._process.terminate()

    def end(self) -> None:
        """End the script if it still runs, with its trainers and its server."""
        if self._process.poll() is None:
            for process in [*psutil.Process(self._process.pid).children(recursive=True), self._process]:
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    process.kill()
            self._process.wait(DEADLINE_S)
        self._log.close()


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., list[Host]]]:
    """Runs the script on both hosts."""
    started: list[Host] = []
    write_parts(make_timed_graph(np.random.default_rng(3), num_papers=120), tmp_path / "parts", num_parts=2)
    store, first = free_ports(1), consecutive_ports()
    ports = {"PORT": store[0], "RENDEZVOUS_PORT": first}

    def start(*words: object, **programs: str) -> list[Host]:
        started.extend(Host(tmp_path, number, ports, *words, **programs) for number in range(len(HOSTS)))
        return started

    yield start
    for host in started:
        host.end()


def consecutive_ports() -> int:
    """The first of two free ports in a row."""
    first = free_port()
    while (second := free_port()) != first + 1:
        first = second
    return first


TRAINER = """
import json, os, sys, time
from pathlib import Path
import torch.distributed as dist
import hopstream

fails, folder = sys.argv[1] == "fails", Path(sys.argv[2])
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
security = hopstream.ClientSecurity(token=Path(os.environ["TOKEN_FILE"]).read_text().strip(), is_insecure=True)
settings = hopstream.StoreSettings(prefer_local=False, security=security)
graph = hopstream.RemoteGraph(os.environ["HOPSTREAM_SERVERS"], settings=settings, timeout_s=30.0)
loader = hopstream.NeighborLoader(
    graph, [3, 2], seeds=("paper", None), batch_size=2, rank=rank, world_size=world_size, collate="numpy"
)
iterator, keys = iter(loader), []
keys += next(iterator).node_keys["paper"][:2].tolist()
is_early = os.environ["LISTEN"].endswith(".2")
if is_early and fails:
    (folder / "early").write_text(str(os.getpid()))
    loader.close()
    sys.exit(7)
if not is_early and fails:  # the other's trainer, and the torchrun that ran it, have ended before the rest is asked for
    while not (folder / "early").exists() or Path("/proc", (folder / "early").read_text(), "exe").exists():
        time.sleep(0.1)
    time.sleep(2.0)
for batch in iterator:
    keys += batch.node_keys["paper"][: batch.batch_size].tolist()
loader.close()
(folder / f"keys-{rank}.json").write_text(json.dumps(keys))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_on_two_hosts_takes_an_epoch_and_ends(hosts, tmp_path):
    (tmp_path / "train.py").write_text(TRAINER)
    ended = [host.wait() for host in hosts(tmp_path / "train.py", "ends", tmp_path)]
    assert [status for status, _ in ended] == [0, 0], ended
    keys = [json.loads((tmp_path / f"keys-{rank}.json").read_text()) for rank in range(2)]
    assert sorted(key for of_rank in keys for key in of_rank) == list(range(120))
    assert all("\nstop " in said for _, said in ended)


PATIENT = """
echo "$*" >> torchrun-$LISTEN
if [[ $* == *--no-python* ]]; then
    touch ended-$LISTEN
    until [[ -e ended-127.0.0.1 && -e ended-127.0.0.2 ]]; do sleep 0.1; done
else
    export RANK=$((${LISTEN##*.} - 1)) WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$RENDEZVOUS_PORT
    exec python "${@: -3}"
fi
"""
"""Stub of ``torchrun`` that does not wait five minutes for failed hosts after a success."""


@pytest.mark.slow
def test_a_host_with_failed_trainers_serves_until_others_end(hosts, tmp_path):
    (tmp_path / "train.py").write_text(TRAINER)
    started = hosts(tmp_path / "train.py", "fails", tmp_path, torchrun=PATIENT)
    (status, said), (failed, said_failed) = [host.wait() for host in started]
    assert (status, failed) == (0, 7), said + said_failed
    (keys,) = [json.loads(path.read_text()) for path in tmp_path.glob("keys-*.json")]
    assert len(keys) == len(set(keys)) == 60, said_failed


@pytest.mark.slow
def test_a_host_leaves_nothing_after_sigterm(hosts, tmp_path):
    first, second = hosts("train.py", torchrun=f"echo > {tmp_path}/runs-$$; exec sleep 600")
    wait_until(lambda: len(list(tmp_path.glob("runs-*"))) == 2, "both have started trainers", DEADLINE_S)
    for host in (first, second):
        host.terminate()
    assert [host.wait()[0] for host in (first, second)] == [143, 143]
    # The fixture of all tests checks that no process is left.


def test_a_host_whose_server_does_not_start_ends_with_its_status(hosts, tmp_path):
    (tmp_path / "parts" / "manifest.json").write_text("{}")
    ended = [host.wait() for host in hosts("train.py", torchrun="exit 9")]
    assert [status for status, _ in ended] == [2, 2], ended
    assert all("error: " in said for _, said in ended)


def test_a_host_missing_from_the_list_is_refused(tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOSTS": "host-a host-b", "PARTS": "parts", "TOKEN_FILE": "token"}
    done = subprocess.run([DEPLOY / "torchrun.sh"], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert 'HOSTS is "host-a host-b", and this is' in done.stderr


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], Any]:
    """Every object of the manifest by kind and name."""
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(found) == len(documents)
    return found


def container_of(document: Any) -> Any:
    (container,) = document["spec"]["template"]["spec"]["containers"]
    return container


def values_of(container: Any) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container["env"]}


def test_the_manifest_starts_servers_and_trainers(manifests, serve_options):
    assert set(manifests) == {
        ("Service", "graph"), ("StatefulSet", "graph"), ("PodDisruptionBudget", "graph"), ("NetworkPolicy", "graph"),
        ("Service", "train"), ("Job", "train"), ("NetworkPolicy", "train"),
    }  # fmt: skip
    servers = manifests["StatefulSet", "graph"]
    (command,) = container_of(servers)["args"]
    assert options_of(command) <= serve_options
    assert {"--parts", "--cluster", "--location", "--token-file", "--peer-ca"} <= options_of(command)
    names = [f"graph-{number}.graph.default.svc.cluster.local" for number in range(servers["spec"]["replicas"])]
    addresses = ",".join(f"tls://{name}:7001" for name in names)
    for document in (servers, manifests["Job", "train"]):
        assert addresses in values_of(container_of(document)).values()


def token_items(document: Any) -> list[dict[str, str]]:
    """Keys of the tokens' secret that a pod mounts, and the names of their files."""
    volumes = {volume["name"]: volume for volume in document["spec"]["template"]["spec"]["volumes"]}
    assert volumes["token"]["secret"]["secretName"] == "graph-token"
    return volumes["token"]["secret"]["items"]


def test_trainers_have_only_their_own_token(manifests):
    assert token_items(manifests["Job", "train"]) == [{"key": "trainers", "path": "token"}]
    servers = manifests["StatefulSet", "graph"]
    assert token_items(servers) == [{"key": "servers", "path": "servers"}]
    words = shlex.split(container_of(servers)["args"][0])
    assert words[words.index("--token-file") + 1] == "/token/servers"


def test_the_token_table_of_the_manifest_is_valid(tmp_path):
    head = MANIFEST.read_text().partition("apiVersion")[0]
    lines = re.findall(r'"(\w+ (?:read|admin) )TOKEN"', head)
    (tmp_path / "servers").touch(mode=0o600)
    (tmp_path / "servers").write_text("".join(f"{line}token-{number}\n" for number, line in enumerate(lines)))
    assert [(who.name, who.rights) for who in read_tokens(tmp_path / "servers")] == [
        ("servers", "admin"), ("trainers", "read"),
    ]  # fmt: skip
    assert read_token(tmp_path / "servers") == "token-0"  # the token of servers for each other


def test_the_memory_that_servers_may_take_fits_the_pods(manifests):
    container = container_of(manifests["StatefulSet", "graph"])
    words = shlex.split(container["args"][0])
    wanted, limit = (int(container["resources"][of]["memory"].removesuffix("Gi")) for of in ("requests", "limits"))
    assert int(words[words.index("--memory-bytes") + 1]) == wanted << 30 >> 1
    assert wanted < limit


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
def test_pods_are_found_by_their_service(manifests, kind):
    (document,) = [one for (of_kind, _), one in manifests.items() if of_kind == kind]
    template = document["spec"]["template"]
    labels = template["metadata"]["labels"]
    name = document["spec"]["serviceName"] if kind == "StatefulSet" else template["spec"]["subdomain"]
    service = manifests["Service", name]["spec"]
    assert service["clusterIP"] == "None"  # a name per pod needs a headless service
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"].items() <= labels.items()
    others = [
        one["spec"]["selector"] for (of_kind, of), one in manifests.items() if of_kind == "Service" and of != name
    ]
    assert not any(selector.items() <= labels.items() for selector in others)
    if kind == "StatefulSet":
        assert document["spec"]["selector"]["matchLabels"] == labels
        assert document["spec"]["podManagementPolicy"] == "Parallel"
    ports = {port["name"]: port["containerPort"] for port in container_of(document)["ports"]}
    assert {port["name"]: port["port"] for port in service["ports"]} == ports


def test_ports_of_the_servers_are_those_of_their_command(manifests):
    container = container_of(manifests["StatefulSet", "graph"])
    words = shlex.split(container["args"][0])
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert words[words.index("--location") + 1].rpartition(":")[2] == ports["store"]
    assert words[words.index("--metrics-port") + 1] == ports["metrics"]
    assert words[words.index("--metrics-host") + 1] == "0.0.0.0"  # probes come from elsewhere
    annotations = manifests["StatefulSet", "graph"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == ports["metrics"]


def test_probes_request_existing_pages(manifests):
    container = container_of(manifests["StatefulSet", "graph"])
    ports = {port["name"] for port in container["ports"]}
    probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"
    }  # fmt: skip
    assert all(probe["port"] in ports for probe in probes.values())
    graph = Graph(nodes={"node": NodeTable(num_nodes=1)}, edges={}, splits={}).check()
    with TemporaryDirectory() as folder:
        write_parts(graph, folder, num_parts=1)
        with (
            LocalStore(open_dataset(folder)) as store,
            StoreServer(store) as server,
            MetricsServer("127.0.0.1", 0, server) as metrics,
        ):
            for probe in probes.values():
                with urlopen(metrics.location + probe["path"]) as answer:
                    assert answer.status == 200


def test_trainers_get_the_variables_of_their_group(manifests):
    job = manifests["Job", "train"]
    container = container_of(job)
    values = values_of(container)
    assert values["WORLD_SIZE"] == str(job["spec"]["completions"]) == str(job["spec"]["parallelism"])
    assert job["spec"]["completionMode"] == "Indexed"
    assert container["args"] == ["RANK=$JOB_COMPLETION_INDEX exec python train.py"]
    assert values["MASTER_ADDR"] == "train-0.train.default.svc.cluster.local"
    assert values["MASTER_PORT"] == str(container["ports"][0]["containerPort"])
    subprocess.run(["bash", "-n", "-c", container["args"][0]], check=True)


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
def test_pods_mount_named_volumes_and_declare_resources(manifests, kind):
    (document,) = [one for (of_kind, _), one in manifests.items() if of_kind == kind]
    container = container_of(document)
    volumes = {volume["name"] for volume in document["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    named = re.findall(r"(/(?:tls|token|data)/[\w.]+)", container["args"][0])
    assert all(any(path.startswith(f"{mounted}/") for mounted in paths) for path in named)


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
def test_pods_have_no_privileges(manifests, kind):
    (document,) = [one for (of_kind, _), one in manifests.items() if of_kind == kind]
    pod = document["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    of_pod = pod["securityContext"]
    assert of_pod["runAsNonRoot"] is True and of_pod["runAsUser"] > 0
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container_of(document)["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    may_write = {mount["name"] for mount in container_of(document)["volumeMounts"] if not mount.get("readOnly")}
    assert may_write == {"tmp"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert "emptyDir" in volumes["tmp"]
    for name in ("tls", "token"):  # no user but the pod's, which has the group, may read them
        assert volumes[name]["secret"]["defaultMode"] == 0o440
    assert of_pod["fsGroup"] == of_pod["runAsGroup"]


def test_all_images_have_one_version(manifests):
    images = {container_of(manifests[one])["image"] for one in (("StatefulSet", "graph"), ("Job", "train"))}
    (version,) = {image.partition(":")[2] for image in images}
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert images == {f"registry.example.org/{name}:{version}" for name in ("hopstream", "train")}
    named = re.findall(r"registry\.example\.org/hopstream:(\S+?)\.?(?:\s|$)", DOCKERFILE.read_text())
    assert set(named) == {version}


def test_one_server_at_a_time_may_be_drained(manifests):
    budget = manifests["PodDisruptionBudget", "graph"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == manifests["StatefulSet", "graph"]["spec"]["selector"]


def peers_of(rule: Any) -> list[tuple[str, Any]]:
    """Peers that a rule lets through: pods of an application, or of a namespace."""
    return [
        (one, labels["matchLabels"].get("app") or labels["matchLabels"]["kubernetes.io/metadata.name"])
        for peer in rule.get("from", rule.get("to"))
        for one, labels in peer.items()
    ]


def test_only_required_peers_can_reach_a_server(manifests):
    policy = manifests["NetworkPolicy", "graph"]["spec"]
    assert policy["podSelector"] == manifests["StatefulSet", "graph"]["spec"]["selector"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    ports = {port["name"]: port["containerPort"] for port in container_of(manifests["StatefulSet", "graph"])["ports"]}
    store, metrics = ({"protocol": "TCP", "port": ports[name]} for name in ("store", "metrics"))
    assert [(peers_of(rule), rule["ports"]) for rule in policy["ingress"]] == [
        ([("podSelector", "graph"), ("podSelector", "train")], [store]),
        ([("namespaceSelector", "monitoring")], [metrics]),
    ]
    assert [(peers_of(rule), rule["ports"]) for rule in policy["egress"]] == [
        ([("podSelector", "graph")], [store]),
        (
            [("namespaceSelector", "kube-system")],
            [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
        ),
    ]


def test_only_trainers_can_reach_trainers(manifests):
    policy = manifests["NetworkPolicy", "train"]["spec"]
    labels = manifests["Job", "train"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"] == {"matchLabels": labels}
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert peers_of(rule) == [("podSelector", "train")] and "ports" not in rule


@pytest.fixture(scope="module")
def stages() -> list[list[tuple[str, str]]]:
    """Instructions and their arguments of each stage of the Dockerfile."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    found: list[list[tuple[str, str]]] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        if line:
            found[-1].append((name, rest.strip()))
    return found


def variables_of(stage: list[tuple[str, str]]) -> dict[str, str]:
    words = [word for name, rest in stage if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)  # type: ignore[misc]


def test_the_image_pins_versions_and_runs_unprivileged(manifests, stages):
    for stage in stages:
        assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+( AS \w+)?", stage[0][1])
    pod = manifests["StatefulSet", "graph"]["spec"]["template"]["spec"]["securityContext"]
    last = stages[-1]
    names = [name for name, _ in last]
    assert dict(last)["USER"] == f"{pod['runAsUser']}:{pod['runAsGroup']}"
    # The user that runs the server may not change its kernels.
    assert names.index("RUN") < names.index("USER") and names.count("USER") == 1


def test_the_image_has_all_files_that_the_package_is_built_of(stages):
    copied = {word for name, rest in stages[0] if name == "COPY" for word in rest.split()[:-1]}
    assert all((ROOT / path).exists() for path in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hatch = project["tool"]["hatch"]
    wanted = [
        project["project"]["readme"], *project["project"]["license-files"],
        *hatch["build"]["targets"]["wheel"]["packages"],
    ]  # fmt: skip
    assert all(any(path == one or path.startswith(f"{one}/") for one in copied) for path in wanted)
    (install,) = [rest for name, rest in stages[0] if name == "RUN"]
    assert "--constraint constraints.txt" in install and "constraints.txt" in copied


OUTSIDE = """
import sys
sys.modules.update(dict.fromkeys(
    ["torch", "torch_geometric", "ray", "apache_beam", "scipy", "networkx", "psutil", "cryptography"]
))
"""
"""Make a Python that has only the packages of the image."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_has_all_kernels_that_its_servers_need(stages, serve_options, tmp_path):
    variables = variables_of(stages[-1])
    assert variables["NUMBA_CPU_NAME"] == "generic"  # nodes have other processors than the machine that builds
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "sitecustomize.py").write_text(OUTSIDE)
    kernels = tmp_path / variables["NUMBA_CACHE_DIR"].removeprefix("/")
    paths = [str(ROOT / "src"), str(tmp_path / "outside"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, **variables, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NUMBA_CACHE_DIR": str(kernels), "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }  # fmt: skip
    (command,) = [rest for name, rest in stages[-1] if name == "RUN"]
    warmed = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=700)
    assert warmed.returncode == 0, warmed.stderr
    compiled = {path.parent.name.partition("-")[0] for path in kernels.rglob("*.nbi")}
    assert {"neighbors", "weighted", "gather", "stitch"} <= compiled
    for path in (kernels, *kernels.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    write_parts(make_timed_graph(np.random.default_rng(3)), tmp_path / "parts", num_parts=1, weight_attr="stars")
    words = [*dict(stages[-1])["ENTRYPOINT"].strip('[]"').split(), "serve", str(tmp_path / "parts"), "--sample"]
    with subprocess.Popen(
        [*words, "--stop-on-eof"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        said, warned = server.communicate(timeout=DEADLINE_S)  # the end of stdin ends it
    assert server.returncode == 0 and "ready" in said
    assert "compil" not in warned


def test_servers_have_enough_time_to_shut_down(manifests):
    servers = manifests["StatefulSet", "graph"]
    words = shlex.split(container_of(servers)["args"][0])
    assert (
        float(words[words.index("--grace-s") + 1])
        < servers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    )


def test_the_script_for_ray_uses_valid_server_options(serve_options):
    tree = ast.parse((DEPLOY / "on_ray.py").read_text())
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List)]
    (words,) = [
        [item.value for item in node.elts if isinstance(item, ast.Constant)]
        for node in lists
        if any(isinstance(item, ast.Constant) and item.value == "serve" for item in node.elts)
    ]
    assert {word for word in words if word.startswith("--")} <= serve_options
    assert {"--tls-cert", "--tls-key", "--client-ca"} <= set(words)
    assert not {"--insecure", "--token-file"} & set(words)


def load_on_ray() -> ModuleType:
    """The script for Ray as a module."""
    spec = importlib.util.spec_from_file_location("on_ray_example", DEPLOY / "on_ray.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_for_ray_admits_only_certified_clients(tmp_path):
    on_ray = load_on_ray()
    sent: list[str] = []

    def member(name: str, authority: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()

        def sign(*request: str) -> tuple[str, str]:
            answer = authority.sign(*request)
            sent.extend((*request, *answer))
            return answer

        on_ray.write_certificate(folder, "127.0.0.1", sign)
        return folder

    authority, another = on_ray.Authority(), on_ray.Authority()
    with authority._folder, another._folder:
        server_folder, trainer = member("server", authority), member("trainer", authority)
        stranger = member("stranger", another)
    assert len(sent) == 12 and not any("PRIVATE" in text for text in sent)  # sent through Ray
    assert all((folder / "own.key").stat().st_mode & 0o077 == 0 for folder in (server_folder, trainer, stranger))

    def settings(folder: Path, root: Path, *, shows: bool = True) -> hopstream.StoreSettings:
        shown = {"certificate": folder / "own.pem", "private_key": folder / "own.key"} if shows else {}
        return hopstream.StoreSettings(
            prefer_local=False, timeout_s=20.0, security=hopstream.ClientSecurity(roots=root / "ca.pem", **shown)
        )

    graph = Graph(nodes={"node": NodeTable(num_nodes=1)}, edges={}, splits={}).check()
    write_parts(graph, tmp_path / "parts", num_parts=1)
    security = ServerSecurity(
        certificate=server_folder / "own.pem", private_key=server_folder / "own.key",
        client_roots=server_folder / "ca.pem",
    )  # fmt: skip
    with (
        LocalStore(open_dataset(tmp_path / "parts")) as store,
        StoreServer(store, "tls://127.0.0.1:0", security=security) as server,
    ):
        with RemoteStore(server.location, settings(trainer, trainer)) as remote:
            assert remote.dataset_id == store.dataset_id
        for refused in (
            settings(trainer, trainer, shows=False),
            settings(stranger, trainer),  # its certificate is another authority's
            settings(trainer, stranger),  # it trusts another authority
        ):
            with pytest.raises((AccessDenied, StoreUnavailable)):
                RemoteStore(server.location, refused)


@pytest.mark.soak
def test_the_example_for_ray_trains_on_two_nodes(ray_cluster, tmp_path):
    edges = np.random.default_rng(0).integers(0, 2000, (2, 20_000))
    hopstream.write_parts(
        hopstream.graph_from_arrays(edges, num_nodes=2000), tmp_path / "parts", num_parts=2, method="hash"
    )
    words = [str(tmp_path / "parts"), "--parts", "2", "--trainers", "2", "--server-cpus", "1"]
    environment = {**os.environ, **ray_cluster.environment}
    ran = subprocess.run(
        [sys.executable, str(DEPLOY / "on_ray.py"), *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert "2000 seeds on 2 trainers" in ran.stdout
    assert "exit statuses of servers: [0, 0]" in ran.stdout
    too_many = subprocess.run(
        [sys.executable, str(DEPLOY / "on_ray.py"), *words[:-1], "9"],
        capture_output=True, text=True, env=environment, timeout=100,
    )  # fmt: skip
    assert too_many.returncode == 1
    assert "need 20 processors and 2 of the resource graph; the cluster has 4 and 2" in too_many.stderr
