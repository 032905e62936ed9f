"""Do the files for clusters say what programs understand?"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import hopstream

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
MANIFEST = DEPLOY / "kubernetes.yaml"


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


def test_the_script_for_torchrun_starts_servers_that_there_are(serve_options):
    path = DEPLOY / "torchrun.sh"
    subprocess.run(["bash", "-n", path], check=True)
    (command,) = re.findall(r"^hopstream serve(?:.*\\\n)*.*$", path.read_text(), re.MULTILINE)
    assert options_of(command.removesuffix("&")) <= serve_options
    assert {"--parts", "--location", "--cluster"} <= options_of(command.removesuffix("&"))


def test_the_manifest_for_kubernetes_starts_servers_that_there_are(serve_options):
    documents = {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}
    assert set(documents) == {"Service", "StatefulSet", "Job"}
    [server] = documents["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    [command] = server["args"]
    assert options_of(command) <= serve_options
    addresses = server["env"][0]["value"].split(",")
    assert len(addresses) == documents["StatefulSet"]["spec"]["replicas"]
    [trainer] = documents["Job"]["spec"]["template"]["spec"]["containers"]
    known = {variable["name"]: variable["value"] for variable in trainer["env"]}
    assert known["HOPSTREAM_SERVERS"] == server["env"][0]["value"]
    assert int(known["WORLD_SIZE"]) == documents["Job"]["spec"]["completions"]
    mounted = {mount["name"] for mount in server["volumeMounts"]}
    assert mounted == {volume["name"] for volume in documents["StatefulSet"]["spec"]["template"]["spec"]["volumes"]}


def test_the_script_for_ray_starts_servers_that_there_are(serve_options):
    tree = ast.parse((DEPLOY / "on_ray.py").read_text())
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List)]
    (words,) = [
        [item.value for item in node.elts if isinstance(item, ast.Constant)]
        for node in lists
        if any(isinstance(item, ast.Constant) and item.value == "serve" for item in node.elts)
    ]
    assert {word for word in words if word.startswith("--")} <= serve_options


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
