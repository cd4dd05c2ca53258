"""What does TLS between the processes cost, in KV per second, and in time and tokens of requests?

KV: messages of 1 MiB between two processes with the workers' channels, which throw them away (`kv/grpc_alone.py`).
Requests: two whole meshes side by side, one of which was started with `--tls`. Every prompt is prefilled by a
prefill worker, and its KV goes through the network. Whoever is measured when goes by turns; of two measurements in
one round the quotient counts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from kv.grpc_alone import NO_TLS, GrpcAlone
from mesh import MODEL, Mesh
from mesh_overhead import make_prompt
from paths import NUM_TOKENS, GatewayPath
from report import Report, arguments
from tokenizers import Tokenizer
from turns import turns

from pagemesh.config import MeshTlsConfig
from pagemesh.identity.roles import REQUIRED, MeshRole
from pagemesh.identity.throw_away import ThrowAwayAuthority

QUESTION = "What TLS between all processes costs: KV, requests one by one, and many at once"
KV_BYTES = 512 * 2**20
NUM_STREAMS = 8
_FLAGS = ("--remote-prefill-min-tokens", "1", "--no-share-kv-memory")


def measure_kv(report: Report, num_rounds: int) -> None:
    """GB/s and CPU seconds per GB."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        certificate = MeshTlsConfig(*(f"{folder}/{kind}" for kind in ("crt", "key", "ca")))
        Path(folder).chmod(0o700)
        ThrowAwayAuthority().issue(certificate, REQUIRED[MeshRole.DECODE])
        kinds = {
            "plain": stack.enter_context(GrpcAlone(KV_BYTES, NO_TLS)),
            "TLS": stack.enter_context(GrpcAlone(KV_BYTES, certificate)),
        }
        for number in range(num_rounds + 1):
            for name in turns(list(kinds), number):
                taken = kinds[name].run()
                if number:  # the first round only warms up
                    cpu = taken.sender_cpu + taken.receiver_cpu
                    report.sample(f"KV: {name}", "GB/s", KV_BYTES / 1e9 / taken.seconds)
                    report.sample(f"KV: {name}, CPU", "s/GB", cpu / (KV_BYTES / 1e9))


def measure_requests(report: Report, num_rounds: int) -> None:
    """Times of one stream, and tokens per second of several."""
    with Mesh(*_FLAGS) as plain, Mesh(*_FLAGS, "--tls") as secured:
        meshes = {"plain": plain, "TLS": secured}
        for mesh in meshes.values():
            mesh.await_ready()
        tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        prompts = (make_prompt(tokenizer, number) for number in count())
        for number in range(num_rounds + 1):
            for name in turns(list(meshes), number):
                one = asyncio.run(GatewayPath(meshes[name]).run(next(prompts)))
                rate = tokens_per_second(meshes[name], [next(prompts) for _ in range(NUM_STREAMS)])
                if number:
                    report.sample(f"one stream: {name}, first token", "ms", one.first_ms)
                    report.sample(f"one stream: {name}, per token", "ms", one.token_ms)
                    report.sample(f"{NUM_STREAMS} streams: {name}", "tokens/s", rate)


def tokens_per_second(mesh: Mesh, prompts: list[list[int]]) -> float:
    """Of so many streams at once."""

    def stream(prompt: list[int]) -> None:
        body = {"model": "demo", "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True}
        for _ in mesh.stream("/v1/completions", body):
            pass

    began = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(stream, prompts))
    return len(prompts) * NUM_TOKENS / (time.perf_counter() - began)


def add_quotients(report: Report) -> None:
    """TLS over plain, round by round."""
    for figure in list(report.figures):
        if ": plain" in figure.name:
            secured = report.samples(figure.name.replace(": plain", ": TLS"))
            pairs = zip(secured, figure.samples, strict=True)
            name = figure.name.replace(": plain", ": TLS over plain")
            report.add(name, "x", [one / base for one, base in pairs])


def main() -> None:
    """Measure both."""
    quick, path = arguments("tls", QUESTION)
    num_rounds = 3 if quick else 20
    report = Report(
        "tls",
        QUESTION,
        {"rounds": num_rounds, "kv_bytes": KV_BYTES, "generated_tokens": NUM_TOKENS},
    )
    measure_kv(report, num_rounds)
    measure_requests(report, num_rounds)
    add_quotients(report)
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
