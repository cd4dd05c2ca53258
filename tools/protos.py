"""Makes the gRPC stubs in src/pagemesh/v1 from protos/, and checks both.

`python -m tools.protos` regenerates; with `--check` nothing in the tree changes: the stubs must equal
a regeneration, and the protos must pass Buf's lint and format rules (buf.yaml). `--fetch` only fetches the compiler.

Stubs run with the protobuf and the grpcio that made them, and newer ones: the compiler is an old one, so that pagemesh
can be installed beside what wants old ones. pip would not install it beside a new protobuf, which it does not use.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from tools.fetched import fetched

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
STUBS = Path("pagemesh/v1")
# Imported protos that are not ours, as pip installed them.
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
COMPILER: Final = "grpcio-tools==1.71.0"
"""Of protobuf 5.29. There are wheels for Python 3.11 to 3.13."""

# The plugins of protoc, and buf, lie beside the interpreter.
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
}


def protoc(*arguments: str) -> None:
    """Compile protos, which may import those that pip installed."""
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{SITE_PACKAGES}", *arguments],
        env=ENVIRONMENT | {"PYTHONPATH": str(fetched(COMPILER))},
        check=True,
        timeout=60,
    )


def regenerate(destination: Path) -> None:
    """Write the stubs of all protos below `destination`, typed by mypy-protobuf."""
    outputs = ("python", "grpc_python", "mypy", "mypy_grpc")
    protoc(
        f"-I{PROTOS}",
        *(f"--{output}_out={destination}" for output in outputs),
        *("--mypy_opt=quiet", "--mypy_grpc_opt=quiet"),
        *(str(path) for path in sorted(PROTOS.rglob("*.proto"))),
    )


def stale_stubs() -> list[str]:
    """Names of committed stubs that a regeneration would add, change or remove."""
    with tempfile.TemporaryDirectory() as temporary:
        regenerate(Path(temporary))
        fresh, committed = Path(temporary) / STUBS, ROOT / "src" / STUBS
        names = {path.name for folder in (fresh, committed) for path in folder.glob("*_pb2*")}
        _, changed, missing = filecmp.cmpfiles(fresh, committed, names, shallow=False)
    return sorted(changed + missing)


def buf(*arguments: str) -> str:
    """Run buf on the protos and return what it complains about; empty means that all is well."""
    vendored = ROOT / "build/googleapis/google/api"
    vendored.mkdir(parents=True, exist_ok=True)
    for name in ("annotations.proto", "http.proto", "httpbody.proto"):
        shutil.copyfile(SITE_PACKAGES / "google/api" / name, vendored / name)
    completed = subprocess.run(
        ["buf", *arguments, "protos"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    return completed.stdout + completed.stderr


def problems() -> list[str]:
    """Everything that `--check` complains about."""
    found = [f"src/{STUBS}/{name} is not what `make protos` makes" for name in stale_stubs()]
    found += buf("lint").splitlines()
    found += buf("format", "--diff").splitlines()
    return found


def main() -> None:
    """Regenerate, or check or fetch when asked to."""
    try:
        if sys.argv[1:] == ["--fetch"]:
            fetched(COMPILER)
            return
        if sys.argv[1:] == ["--check"]:
            found = problems()
            print("\n".join(found) or "protos: clean")
            sys.exit(1 if found else 0)
        regenerate(ROOT / "src")
    except subprocess.CalledProcessError:
        sys.exit("protoc refuses the protos, or cannot be fetched, see above")


if __name__ == "__main__":
    main()
