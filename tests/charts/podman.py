"""Rendered workloads started by `podman play kube`, which knows pods and no services.

What is changed of them, and nothing else: addresses are given beforehand, as there are neither Services nor DNS; the
StatefulSet is a pod; a second replica is a second Deployment; ports are not declared; variables are put into
arguments; requests and limits are left out where the machine's cgroups cannot do them.
"""

from __future__ import annotations

import copy
import ipaddress
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.charts.rendering import Rendered, template_of

DEADLINE_S = 120


class Podman:
    """The command, with limits that a machine allows and a network of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        conf = folder / "containers.conf"
        files, processes = _limit(resource.RLIMIT_NOFILE), _limit(resource.RLIMIT_NPROC)
        cgroups = "" if Path("/run/systemd/system").exists() else 'cgroup_manager = "cgroupfs"\n'
        conf.write_text(
            f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]\n'
            f'[engine]\nevents_logger = "file"\n{cgroups}',
            encoding="utf-8",
        )
        self._environment = {**os.environ, "CONTAINERS_CONF": str(conf)}
        self.network = f"pagemesh-test-{os.getpid()}"

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["podman", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
        return done

    def has(self, image: str) -> bool:
        """Whether there is such an image, after a look at what a Docker engine has of that name."""
        in_docker = _id_of("docker", image, None)
        if in_docker and in_docker != _id_of("podman", image, self._environment):
            archive = self._folder / "image.tar"
            subprocess.run(
                ["docker", "save", "-o", str(archive), image], check=True, timeout=DEADLINE_S
            )
            self.run("load", "-i", str(archive))
            archive.unlink()
        return _id_of("podman", image, self._environment) is not None

    def addresses(self) -> Iterator[str]:
        """Of the network, from the tenth on."""
        [found] = json.loads(self.run("network", "inspect", self.network).stdout)
        listed = found.get("subnets") or found["plugins"][0]["ipam"]["ranges"][0]
        for number, address in enumerate(ipaddress.ip_network(listed[0]["subnet"]).hosts()):
            if number >= 10:
                yield str(address)

    def play(self, found: dict[str, Any], address: str) -> None:
        path = self._folder / f"{found['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(found), encoding="utf-8")
        self.run("play", "kube", "--network", self.network, "--ip", address, str(path))

    def container(self, name: str) -> dict[str, Any]:
        """State and settings of the container whose name ends so."""
        [found] = json.loads(self.run("inspect", name).stdout)
        answer: dict[str, Any] = found
        return answer

    def logs(self, name: str) -> str:
        done = self.run("logs", name, check=False)
        return done.stdout + done.stderr


def _id_of(engine: str, image: str, environment: dict[str, str] | None) -> str | None:
    """The same in both engines for the same image; None without the image or the engine."""
    if shutil.which(engine) is None:
        return None
    words = [engine, "image", "inspect", "--format", "{{.Id}}", image]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )
    return done.stdout.strip().removeprefix("sha256:") if done.returncode == 0 else None


def _limit(kind: int) -> int:
    """What a container may be given without the right to raise limits; unlimited is -1."""
    limit, _ = resource.getrlimit(kind)
    return min(limit, 8192) if limit > 0 else 8192


def workload(rendered: Rendered, name: str) -> dict[str, Any]:
    """A Deployment, or the StatefulSet, by its name."""
    kind = "StatefulSet" if name == "kvstore" else "Deployment"
    return copy.deepcopy(rendered.one(kind, name))


def adapted(
    found: dict[str, Any], name: str, address: str, hosts: dict[str, str], *, can_limit: bool
) -> dict[str, Any]:
    """The workload under another name, with addresses in place of services."""
    pod = template_of(found)["spec"]
    pod["hostAliases"] = [{"ip": ip, "hostnames": [host]} for host, ip in hosts.items()]
    for container in pod["containers"]:
        for variable in container["env"]:
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if field == "status.podIP":
                variable.pop("valueFrom")
                variable["value"] = address
        # The kubelet puts variables into arguments, podman does not.
        container["args"] = [
            word.replace("$(POD_IP)", address).replace("$(POD_NAME)", name)
            for word in container["args"]
        ]
        # Some podmans listen for them on the host, where each could be there once.
        container.pop("ports")
        if not can_limit:
            container.pop("resources")
    found["metadata"]["name"] = name
    if found["kind"] == "StatefulSet":
        template = template_of(found)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": name},
            "spec": pod,
        }
    found["spec"]["replicas"] = 1
    return found
