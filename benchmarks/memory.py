"""How much memory does each process of a mesh hold after it has worked?"""

from __future__ import annotations

from mesh import MODEL, Mesh
from report import Report, arguments

from pagemesh.config import CPU_KV_CACHE_MEMORY

QUESTION = "Resident memory of each process after some requests"
MIB = 2**20
AIMS_MB = {"router": 300, "kvstore": 120}
WORKER_AIM_MB = 700


def worker_aim_mb() -> float:
    """Largest size of a worker with its engine: the weights and the KV cache come on top."""
    weights_mb = sum(path.stat().st_size for path in MODEL.glob("*.safetensors")) / MIB
    return WORKER_AIM_MB + weights_mb + CPU_KV_CACHE_MEMORY * 1024


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
        memory = {name: part.process.memory_full_info() for name, part in mesh.parts().items()}
    for name in sorted(memory):
        report.add(name, "MB", [memory[name].rss / MIB], aim=AIMS_MB.get(name))
    for worker in ("decode-0", "prefill-0"):
        # Proportional sizes: KV pages lie in the memory of both, and count once.
        both_mb = (memory[worker].pss + memory[f"{worker} engine"].pss) / MIB
        report.add(f"{worker} and its engine", "MB", [both_mb], aim=worker_aim_mb())
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
