"""Do the files for clusters say what programs understand?"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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
