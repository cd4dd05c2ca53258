"""Settings of `pagemesh sim`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from pagemesh.config import RoutingConfig, RoutingPolicy
from pagemesh.config.environment import require, require_seconds
from pagemesh.sim.lengths import MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS
from pagemesh.workload.slo import Slo, parse_slo

PolicyName = RoutingPolicy | Literal["oracle"]

MAX_WORKERS: Final = 100_000
"""Of each kind in one mesh."""

MAX_TOKENS: Final = 10_000_000
"""Of one prompt, and of one answer."""

MAX_SECONDS: Final = 10_000_000_000
"""Of any time: what is added to it in a simulation is not yet lost in rounding."""


def _require_within(flag: str, value: float, least: float, most: float) -> None:
    """Neither infinite numbers nor those that are none are between any others."""
    require(least <= value <= most, flag, value, f"from {least:,} to {most:,}")


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """What is asked of the mesh. Lengths are medians, of log-normal distributions."""

    trace: str | None = None
    """File with requests, in place of --workload: Mooncake's JSON Lines (timestamp, input_length, output_length,
    hash_ids), or ShareGPT's JSON (conversations with from and value)."""

    workload: Literal["shared_prefix", "sharegpt", "mooncake"] = "shared_prefix"
    """shared_prefix: questions behind one of several system prompts. sharegpt: conversations, each turn behind
    all that was said before. mooncake: long prompts, some of which go on where an earlier one was."""

    num_prompts: int = 2000
    """As of `vllm bench serve`: requests that are made; of a file, at most so many are taken, from its beginning."""

    burstiness: float = 1.0
    """As of `vllm bench serve`: the shape of the gamma distribution of the gaps between arrivals. 1 makes them a
    Poisson process, less makes bursts and long pauses, more makes gaps more alike. A file of Mooncake's form has
    its own."""

    seed: int = 0
    """Of all draws; equal seeds give equal runs."""

    prefixes: int = 60
    """Different system prompts."""

    prefix_tokens: int = 4000
    """Tokens of a system prompt; 0 for none. All conversations have the same one, those of a file too."""

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

    def __post_init__(self) -> None:
        _require_within("--num-prompts", self.num_prompts, 1, 10_000_000)
        _require_within("--burstiness", self.burstiness, 0.001, 1_000_000)
        _require_within("--prefixes", self.prefixes, 1, 10_000_000)
        _require_within("--prefix-tokens", self.prefix_tokens, 0, MAX_TOKENS)
        _require_within("--zipf", self.zipf, 0, 10)
        _require_within("--prompt-tokens", self.prompt_tokens, 1, MAX_PROMPT_TOKENS)
        _require_within("--output-tokens", self.output_tokens, 1, MAX_OUTPUT_TOKENS)
        _require_within("--turns", self.turns, 1, 1_000_000)
        _require_within("--think-time", self.think_time, 0, MAX_SECONDS)
        _require_within("--chars-per-token", self.chars_per_token, 0.01, 1000)


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """How workers fail."""

    mean_time_between_failures: float | None = None
    """Mean seconds between two failures of one worker; unset, none fails."""

    restart_time: float = 30.0
    """Seconds from a failure until the worker is back, with an empty cache."""

    def __post_init__(self) -> None:
        mean = self.mean_time_between_failures
        if mean is not None:
            _require_within("--mean-time-between-failures", mean, 0.1, MAX_SECONDS)
        _require_within("--restart-time", self.restart_time, 0, MAX_SECONDS)


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

    goodput: tuple[str, ...] = ("ttft:1000", "tpot:50")
    """As of `vllm bench serve`: name:milliseconds for each limit that a good request keeps to, of ttft (to the
    first token), tpot (mean for each token behind it) and e2el (to the last token)."""

    json: str | None = None
    """File for all figures."""

    plots: str | None = None
    """Folder for plots."""

    write_trace: str | None = None
    """File for the requests of --workload sharegpt or mooncake, in the form that --trace reads; nothing is
    simulated then."""

    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)

    def __post_init__(self) -> None:
        if self.workload.trace is not None:
            no_file = "unset with --trace: what --workload makes is written"
            require(self.write_trace is None, "--write-trace", self.write_trace, no_file)
        require(len(self.policies) > 0, "--policies", self.policies, "one or more names")
        for rate in self.request_rate:
            _require_within("--request-rate", rate, 0.001, 1_000_000)
        _require_within("--decode", self.decode, 1, MAX_WORKERS)
        _require_within("--prefill", self.prefill, 0, MAX_WORKERS)
        RoutingConfig(
            "kv_aware", self.remote_prefill_min_tokens, scorer_weights=self.scorer_weights
        )
        _require_within("--routers", self.routers, 1, 10_000)
        if self.block_size is not None:
            _require_within("--block-size", self.block_size, 1, MAX_TOKENS)
        if self.cores is not None:
            _require_within("--cores", self.cores, 0.01, 1_000_000)
        _require_within("--max-waiting-requests", self.max_waiting_requests, 1, 1_000_000_000)
        require_seconds("--request-timeout", self.request_timeout, MAX_SECONDS)
        parse_slo(self.goodput)
        _require_within("--index-lag", self.index_lag, 0, MAX_SECONDS)
        _require_within("--report-delay", self.report_delay, 0, MAX_SECONDS)

    @property
    def slo(self) -> Slo:
        """The limits of --goodput."""
        return parse_slo(self.goodput)
