"""Settings of `pagemesh sim`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from pagemesh.config import RoutingConfig, RoutingPolicy, require
from pagemesh.sim.arrivals import ArrivalKind

PolicyName = RoutingPolicy | Literal["oracle"]

MAX_WORKERS: Final = 100_000
"""Of one mesh."""


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """What is asked of the mesh. Lengths are medians, of log-normal distributions."""

    trace: str | None = None
    """File with requests, in place of --workload: Mooncake's JSON Lines (timestamp, input_length, output_length,
    hash_ids), or ShareGPT's JSON (conversations with from and value)."""

    workload: Literal["shared_prefix", "sharegpt", "mooncake"] = "shared_prefix"
    """shared_prefix: questions behind one of several system prompts. sharegpt: conversations, each turn behind
    all that was said before. mooncake: long prompts, some of which go on where an earlier one was."""

    num_requests: int = 2000
    """Requests that are made; of a file, at most so many are taken, from its beginning."""

    arrivals: ArrivalKind = "poisson"
    """Gaps between arrivals: poisson has exponential ones, bursty many short ones and long pauses, uniform
    equal ones. A file of Mooncake's form has its own."""

    burstiness: float = 3.0
    """Standard deviation of the gaps of bursty arrivals, in means; 1 makes them poisson."""

    seed: int = 0
    """Of all draws; equal seeds give equal runs."""

    prefixes: int = 60
    """Different system prompts."""

    prefix_tokens: int = 4000
    """Tokens of a system prompt; 0 for none. The conversations of sharegpt have all the same one."""

    zipf: float = 1.0
    """Popularity of system prompts: the n-th comes in proportion to 1 / n^zipf; 0 makes all alike."""

    prompt_tokens: int = 200
    """Tokens of a message."""

    output_tokens: int = 150
    """Tokens of an answer."""

    turns: float = 4.0
    """Mean turns of a conversation."""

    think_time: float = 10.0
    """Mean seconds from an answer to the next message."""

    chars_per_token: float = 4.0
    """Characters of a token in ShareGPT's files."""

    write_trace: str | None = None
    """File for the requests of --workload sharegpt or mooncake, in the form that --trace reads; nothing is
    simulated then."""

    def __post_init__(self) -> None:
        require(self.num_requests > 0, "--num-requests", self.num_requests, "positive")
        require(self.burstiness > 0, "--burstiness", self.burstiness, "positive")
        require(self.prefixes > 0, "--prefixes", self.prefixes, "positive")
        require(self.prefix_tokens >= 0, "--prefix-tokens", self.prefix_tokens, "0 or more")
        require(self.zipf >= 0, "--zipf", self.zipf, "0 or more")
        require(self.prompt_tokens > 0, "--prompt-tokens", self.prompt_tokens, "positive")
        require(self.output_tokens > 0, "--output-tokens", self.output_tokens, "positive")
        require(self.turns >= 1, "--turns", self.turns, "at least 1")
        require(self.think_time >= 0, "--think-time", self.think_time, "0 or more seconds")
        require(self.chars_per_token > 0, "--chars-per-token", self.chars_per_token, "positive")


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """How workers fail."""

    mean_time_between_failures: float | None = None
    """Mean seconds between two failures of one worker; unset, none fails."""

    restart_time: float = 30.0
    """Seconds from a failure until the worker is back, with an empty cache."""

    def __post_init__(self) -> None:
        if self.mean_time_between_failures is not None:
            require(
                self.mean_time_between_failures > 0,
                "--mean-time-between-failures",
                self.mean_time_between_failures,
                "positive",
            )
        require(self.restart_time >= 0, "--restart-time", self.restart_time, "0 or more seconds")


@dataclass(frozen=True, slots=True)
class SimConfig:
    """Settings of `pagemesh sim`: a modelled mesh under the router's own decisions."""

    policies: tuple[PolicyName, ...] = (
        "round_robin",
        "least_loaded",
        "prefix_hash",
        "kv_aware",
        "oracle",
    )
    """Those to compare: the router's, and oracle, which takes the worker that holds the most and hears of it
    without delay."""

    request_rate: tuple[float, ...] = ()
    """Requests per second, one or more; 1 for each decode worker when unset, and of a Mooncake file what it has."""

    decode: int = 8
    """Decode workers."""

    prefill: int = 0
    """Prefill workers."""

    routers: int = 1
    """Routers, to which requests go in turn; each knows only of its own what is under way."""

    rates: str | None = None
    """YAML or JSON file with what was measured of workers and links, see docs/simulator.md; an example of
    round figures when unset: a model of 8 billion parameters, one large GPU for each worker."""

    block_size: int | None = None
    """Tokens per KV block, other than in --rates: large blocks make large simulations quick."""

    cores: float | None = None
    """Cores of one machine that all workers share, other than in --rates: steps take longer while more workers
    compute than there are cores. Unset, each worker has its own."""

    max_waiting_requests: int = 1024
    """Requests in progress above this are refused, by each router."""

    request_timeout: float = 600.0
    """Seconds that a request may take in all."""

    remote_prefill_min_tokens: int | None = None
    """As of `pagemesh router`: prompts with at least so many uncached tokens go to a prefill worker."""

    scorer_weights: tuple[str, ...] = ()
    """As of `pagemesh router`: name=weight for kv_aware."""

    index_lag: float = 0.005
    """Seconds from the end of a step until lookups find its blocks."""

    report_delay: float = 0.005
    """Seconds from a worker's report of its load, ten times a second, until routers know it."""

    slo_ttft: float = 1.0
    """Seconds to the first token, at most, for a request to count as good."""

    slo_tpot: float = 0.05
    """Mean seconds for each token behind the first, at most, likewise."""

    json: str | None = None
    """File for all figures."""

    plots: str | None = None
    """Folder for plots."""

    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)

    def __post_init__(self) -> None:
        require(len(self.policies) > 0, "--policies", self.policies, "one or more names")
        for rate in self.request_rate:
            require(rate > 0, "--request-rate", rate, "positive")
        require(self.decode >= 1, "--decode", self.decode, "at least 1")
        require(self.prefill >= 0, "--prefill", self.prefill, "0 or more")
        num_workers = self.decode + self.prefill
        require(
            num_workers <= MAX_WORKERS, "--decode", self.decode, f"at most {MAX_WORKERS} workers"
        )
        RoutingConfig(
            "kv_aware", self.remote_prefill_min_tokens, scorer_weights=self.scorer_weights
        )
        require(self.routers >= 1, "--routers", self.routers, "at least 1")
        if self.block_size is not None:
            require(self.block_size > 0, "--block-size", self.block_size, "positive")
        if self.cores is not None:
            require(self.cores > 0, "--cores", self.cores, "positive")
        for flag, limit in (
            ("--max-waiting-requests", self.max_waiting_requests),
            ("--request-timeout", self.request_timeout),
            ("--slo-ttft", self.slo_ttft),
            ("--slo-tpot", self.slo_tpot),
        ):
            require(limit > 0, flag, limit, "positive")
        for flag, seconds in (
            ("--index-lag", self.index_lag),
            ("--report-delay", self.report_delay),
        ):
            require(seconds >= 0, flag, seconds, "0 or more seconds")
