"""Settings of `pagemesh plan` beyond a single worker's memory, and the kinds of GPU that they name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pagemesh.config import RoutingPolicy
from pagemesh.config.environment import require, require_seconds
from pagemesh.sim.settings import WorkloadConfig
from pagemesh.workload.slo import Slo, parse_slo

MAX_WORKERS = 10_000
"""More are never tried."""

GpuName = Literal[
    "a100-40gb", "a100-80gb", "b200", "h100", "h200", "l4", "l40s", "rtx-3090", "rtx-4090"
]


class Gpu(NamedTuple):
    """What one kind has, as its maker states it."""

    memory: float
    """GiB that CUDA says it has: less than is printed on it."""
    tflops: float
    """Of dense products of 16-bit numbers; data sheets often state twice that, with sparsity."""
    bandwidth: float
    """GB/s of its memory."""
    capability: tuple[int, int]
    """Compute capability, major and minor (developer.nvidia.com/cuda-gpus)."""
    source: str
    """Where TFLOP/s and GB/s stand."""


GPUS: Final[dict[GpuName, Gpu]] = {
    "a100-40gb": Gpu(39.4, 312, 1555, (8, 0), "NVIDIA A100 data sheet, SXM 40 GB"),
    "a100-80gb": Gpu(79.1, 312, 2039, (8, 0), "NVIDIA A100 data sheet, SXM 80 GB"),
    "b200": Gpu(178.0, 2250, 8000, (10, 0), "NVIDIA DGX B200 data sheet, an eighth"),
    "h100": Gpu(79.1, 989, 3350, (9, 0), "NVIDIA H100 data sheet, SXM"),
    "h200": Gpu(139.8, 989, 4800, (9, 0), "NVIDIA H200 data sheet, SXM"),
    "l4": Gpu(22.0, 121, 300, (8, 9), "NVIDIA L4 data sheet"),
    "l40s": Gpu(44.4, 362, 864, (8, 9), "NVIDIA L40S data sheet"),
    "rtx-3090": Gpu(23.6, 71, 936, (8, 6), "NVIDIA Ampere GA102 whitepaper, sums in float32"),
    "rtx-4090": Gpu(23.6, 165, 1008, (8, 9), "NVIDIA Ada whitepaper, sums in float32"),
}


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """What the GPUs are, where they are not there to be measured."""

    gpu: GpuName | None = None
    """Kind of GPU; its memory, TFLOP/s and bandwidth are those of its data sheet unless they are given."""

    gpu_tflops: float | None = None
    """TFLOP/s of each GPU for dense products of the model's type."""

    gpu_bandwidth: float | None = None
    """GB/s of each GPU's memory."""

    gpu_efficiency: float = 0.6
    """Share of --gpu-tflops and --gpu-bandwidth that is reached, where a worker's rates are estimated."""

    def __post_init__(self) -> None:
        for flag, value in (
            ("--gpu-tflops", self.gpu_tflops),
            ("--gpu-bandwidth", self.gpu_bandwidth),
        ):
            require(value is None or 0 < value < math.inf, flag, value, "positive")
        efficiency = self.gpu_efficiency
        require(0 < efficiency <= 1, "--gpu-efficiency", efficiency, "more than 0 and at most 1")

    @property
    def data_sheet(self) -> Gpu | None:
        """Of --gpu."""
        return None if self.gpu is None else GPUS[self.gpu]

    @property
    def tflops(self) -> float | None:
        """As given, or as of the data sheet."""
        sheet = self.data_sheet
        return sheet.tflops if self.gpu_tflops is None and sheet else self.gpu_tflops

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of --gpu, whatever figures are given beside it; None without one."""
        sheet = self.data_sheet
        return None if sheet is None else sheet.capability

    @property
    def bandwidth(self) -> float | None:
        """Likewise, in GB/s."""
        sheet = self.data_sheet
        return sheet.bandwidth if self.gpu_bandwidth is None and sheet else self.gpu_bandwidth


@dataclass(frozen=True, slots=True)
class DeploymentConfig:
    """What is asked of a deployment; nothing without --request-rate or --trace."""

    request_rate: float | None = None
    """Requests per second, for which a deployment is planned; with --trace, a Mooncake file's own when unset."""

    goodput: tuple[str, ...] = ("ttft:1000", "tpot:50")
    """As of `vllm bench serve`: name:milliseconds for each limit that a good request keeps to, of ttft (to the
    first token), tpot (mean for each token behind it) and e2el (to the last token)."""

    goodput_share: float = 0.99
    """Share of all requests that must be good."""

    rates: str | None = None
    """YAML or JSON file with the times that were measured of workers and links, see docs/simulator.md; unset,
    they are estimated from --gpu, or --gpu-tflops and --gpu-bandwidth."""

    policy: RoutingPolicy = "kv_aware"
    """How routers choose decode workers."""

    prefill_ratios: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0)
    """Prefill workers for each decode worker, of the deployments to compare; 0 has decode workers prefill by
    themselves."""

    max_workers: int = 256
    """Most workers of a deployment that is tried."""

    spare: int = 1
    """Workers of each kind that may fail without the SLO being missed."""

    plan_timeout: float = 300.0
    """Seconds after which the best deployment that was found until then is the answer."""

    values: str | None = None
    """File for a values.yaml of charts/pagemesh with the planned deployment."""

    workload: WorkloadConfig = field(default_factory=WorkloadConfig)

    def __post_init__(self) -> None:
        rate = self.request_rate
        require(
            rate is None or 0.001 <= rate <= 1_000_000,
            "--request-rate",
            rate,
            "from 0.001 to 1,000,000",
        )
        parse_slo(self.goodput)
        share = self.goodput_share
        require(0 < share <= 1, "--goodput-share", share, "more than 0 and at most 1")
        require(len(self.prefill_ratios) > 0, "--prefill-ratios", (), "one or more numbers")
        for ratio in self.prefill_ratios:
            require(0 <= ratio <= 100, "--prefill-ratios", ratio, "from 0 to 100")
        require(
            1 <= self.max_workers <= MAX_WORKERS,
            "--max-workers",
            self.max_workers,
            f"from 1 to {MAX_WORKERS:,}",
        )
        require(0 <= self.spare <= 1000, "--spare", self.spare, "from 0 to 1,000")
        require_seconds("--plan-timeout", self.plan_timeout, most=86_400)

    @property
    def is_wanted(self) -> bool:
        """Whether traffic is given, so that a deployment is to be planned for it."""
        return self.request_rate is not None or self.workload.trace is not None

    @property
    def slo(self) -> Slo:
        """Of --goodput."""
        return parse_slo(self.goodput)
