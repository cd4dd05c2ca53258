"""How much memory does each process of a mesh hold after it has worked?"""

from __future__ import annotations

from mesh import MODEL, Mesh
from report import Report, arguments

from pagemesh.config import CacheConfig

QUESTION = "Resident memory of each process after some requests"
MIB = 2**20
ROUTER_AIM_MB, KVSTORE_AIM_MB, WORKER_AIM_MB = 300, 120, 700


def aim_for(part: str) -> float | None:
    """Largest size in MB: a worker may hold its weights and its KV cache on top."""
    weights_mb = sum(path.stat().st_size for path in MODEL.glob("*.safetensors")) / MIB
    worker = WORKER_AIM_MB + weights_mb + CacheConfig().kv_cache_memory * 1024
    aims = {"router": ROUTER_AIM_MB, "kvstore": KVSTORE_AIM_MB, "prefill": worker, "decode": worker}
    return aims.get(part.split("-")[0])


def main() -> None:
    """Start a mesh, let it answer, and look."""
    quick, path = arguments("memory", QUESTION)
    num_requests = 4 if quick else 32
    report = Report("memory", QUESTION, {"model": "models/demo", "requests": num_requests})
    with Mesh() as mesh:
        mesh.await_ready()
        for number in range(num_requests):
            words = " ".join(f"word{number}x{index}" for index in range(100))
            list(
                mesh.stream("/v1/completions", {"model": "demo", "prompt": words, "max_tokens": 32})
            )
        for name, part in sorted(mesh.parts().items()):
            resident_mb = part.process.memory_info().rss / MIB
            report.add(name, "MB", [resident_mb], aim=aim_for(name))
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
