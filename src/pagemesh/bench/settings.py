"""Settings of `pagemesh bench`; flags have the names that `vllm bench` gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from pagemesh.bench.endpoint_settings import EndpointConfig
from pagemesh.bench.metric_names import parse_metrics, parse_percentiles
from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.config.environment import require
from pagemesh.workload.slo import Slo, parse_slo

MAX_TOKENS: Final = 10_000_000
"""Of one prompt, and of one answer."""


def _require_length(flag: str, value: int | None, least: int = 1) -> None:
    if value is not None:
        require(least <= value <= MAX_TOKENS, flag, value, f"from {least:,} to {MAX_TOKENS:,}")


@dataclass(frozen=True, slots=True)
class DatasetConfig:
    """What is asked. Lengths are tokens, as --tokenizer or the model has them."""

    dataset_name: Literal["random", "sharegpt", "prefix_repetition"] = "random"
    """random: words by chance, all answers of their full length. sharegpt: the first message of each conversation of
    a file, and as many tokens as its answer has. prefix_repetition: words by chance behind one of a few beginnings."""

    dataset_path: str | None = None
    """JSON file of ShareGPT's form, for --dataset-name sharegpt."""

    num_prompts: int = 1000
    """Requests at each rate."""

    seed: int = 0
    """Of all draws; equal seeds give equal requests at equal times."""

    input_len: int | None = None
    """Tokens of a prompt, in place of --random-input-len."""

    output_len: int | None = None
    """Tokens of an answer, in place of --random-output-len, --sharegpt-output-len or
    --prefix-repetition-output-len."""

    random_input_len: int = 1024
    """Tokens of a prompt, those that the tokenizer puts in front included."""

    random_output_len: int = 128
    """Tokens of an answer."""

    random_range_ratio: float = 0.0
    """Lengths are even between (1 - this) and (1 + this) times those above; below 1."""

    random_prefix_len: int = 0
    """Tokens in front of each prompt that are the same in all of them; they come on top of --random-input-len."""

    sharegpt_output_len: int | None = None
    """Tokens of each answer, whatever the file's have."""

    prefix_repetition_prefix_len: int = 256
    """Tokens of a beginning."""

    prefix_repetition_suffix_len: int = 256
    """Tokens behind it, other ones in each prompt."""

    prefix_repetition_num_prefixes: int = 10
    """Different beginnings, which all get the same number of prompts; what is left of --num-prompts is not sent."""

    prefix_repetition_output_len: int = 128
    """Tokens of an answer."""

    def __post_init__(self) -> None:
        is_file = self.dataset_name == "sharegpt"
        expected = "the file of --dataset-name sharegpt, and unset without that"
        require(
            is_file == (self.dataset_path is not None),
            "--dataset-path",
            self.dataset_path,
            expected,
        )
        require(
            1 <= self.num_prompts <= 10_000_000,
            "--num-prompts",
            self.num_prompts,
            "from 1 to 10,000,000",
        )
        _require_length("--input-len", self.input_len)
        _require_length("--output-len", self.output_len)
        _require_length("--random-input-len", self.random_input_len)
        _require_length("--random-output-len", self.random_output_len)
        ratio = self.random_range_ratio
        require(0 <= ratio < 1, "--random-range-ratio", ratio, "from 0 to less than 1")
        _require_length("--random-prefix-len", self.random_prefix_len, least=0)
        _require_length("--sharegpt-output-len", self.sharegpt_output_len)
        _require_length("--prefix-repetition-prefix-len", self.prefix_repetition_prefix_len)
        _require_length("--prefix-repetition-suffix-len", self.prefix_repetition_suffix_len)
        _require_length("--prefix-repetition-output-len", self.prefix_repetition_output_len)
        if self.dataset_name == "prefix_repetition":
            number, flag = self.prefix_repetition_num_prefixes, "--prefix-repetition-num-prefixes"
            require(
                1 <= number <= self.num_prompts,
                flag,
                number,
                f"from 1 to --num-prompts, {self.num_prompts}",
            )
        is_fixed = self.dataset_name != "random" and self.input_len is not None
        require(not is_fixed, "--input-len", self.input_len, "unset without --dataset-name random")

    @property
    def answer_len(self) -> int | None:
        """Tokens of each answer; None for those of the file."""
        own = {
            "random": self.random_output_len,
            "sharegpt": self.sharegpt_output_len,
            "prefix_repetition": self.prefix_repetition_output_len,
        }
        return own[self.dataset_name] if self.output_len is None else self.output_len


@dataclass(frozen=True, slots=True)
class TrafficConfig:
    """When requests are sent."""

    request_rate: tuple[float, ...] = (math.inf,)
    """Requests per second; inf sends all at once. With several, each is measured by itself, one after the other, with
    other prompts."""

    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps between requests. 1 makes them a Poisson process, less makes bursts
    and long pauses, more makes gaps more alike."""

    max_concurrency: int | None = None
    """Most requests under way; what comes meanwhile waits here. Unset, requests are sent at their times, however slow
    the answers are."""

    num_warmups: int = 0
    """Requests that are sent and awaited before anything is measured."""

    def __post_init__(self) -> None:
        rates = self.request_rate
        require(len(rates) > 0, "--request-rate", rates, "one or more rates")
        for rate in rates:
            require(
                0.001 <= rate <= 1_000_000 or rate == math.inf,
                "--request-rate",
                rate,
                "from 0.001 to 1,000,000, or inf",
            )
        require(len(set(rates)) == len(rates), "--request-rate", rates, "different ones")
        require(
            0.001 <= self.burstiness <= 1_000_000,
            "--burstiness",
            self.burstiness,
            "from 0.001 to 1,000,000",
        )
        limit = self.max_concurrency
        require(limit is None or limit >= 1, "--max-concurrency", limit, "at least 1")
        require(
            0 <= self.num_warmups <= 1_000_000,
            "--num-warmups",
            self.num_warmups,
            "from 0 to 1,000,000",
        )


@dataclass(frozen=True, slots=True)
class ResultConfig:
    """What is told of it, and where."""

    percentile_metrics: str = "ttft,tpot,itl"
    """Metrics of the table, with commas in between: ttft (to the first token), tpot (mean for each token behind it),
    itl (between two pieces), e2el (to the last token), and with --max-concurrency client_queue_time (waited
    here) and e2el_including_client_queue."""

    metric_percentiles: str = "99"
    """Percentiles of each, with commas in between: 50,90,99.9."""

    goodput: tuple[str, ...] = ()
    """name:milliseconds for each limit that a good request keeps to, of ttft, tpot and e2el."""

    save_result: bool = False
    """Write a JSON file for each rate, with vLLM's fields."""

    save_detailed: bool = False
    """Have times, lengths, text and error of every request in it."""

    result_dir: str | None = None
    """Folder for the files, made if it is not there; the present one when unset."""

    result_filename: str | None = None
    """Name of the file, for a single rate; made from backend, rate, model and time when unset."""

    metadata: tuple[str, ...] = ()
    """KEY=VALUE for each field to be added to the files."""

    plots: str | None = None
    """Folder for latency over rate, as PNG and as HTML that needs nothing else."""

    disable_tqdm: bool = False
    """Show no progress: neither a bar in a terminal, nor lines elsewhere."""

    def __post_init__(self) -> None:
        parse_metrics(self.percentile_metrics)
        parse_percentiles(self.metric_percentiles)
        if self.goodput:
            parse_slo(self.goodput)
        saves = self.save_result
        needed = "unset without --save-result"
        require(saves or not self.save_detailed, "--save-detailed", self.save_detailed, needed)
        require(saves or self.result_dir is None, "--result-dir", self.result_dir, needed)
        require(
            saves or self.result_filename is None, "--result-filename", self.result_filename, needed
        )
        for pair in self.metadata:
            require(pair.find("=") > 0, "--metadata", pair, "KEY=VALUE")

    @property
    def shown(self) -> tuple[str, ...]:
        """Names of the metrics of the table."""
        return parse_metrics(self.percentile_metrics)

    @property
    def percentiles(self) -> tuple[float, ...]:
        """Of each metric."""
        return parse_percentiles(self.metric_percentiles)

    @property
    def slo(self) -> Slo | None:
        """The limits of --goodput; None without any."""
        return parse_slo(self.goodput) if self.goodput else None


@dataclass(frozen=True, slots=True)
class BenchServeConfig:
    """Settings of `pagemesh bench serve`: an OpenAI endpoint under load."""

    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    traffic: TrafficConfig = field(default_factory=TrafficConfig)
    results: ResultConfig = field(default_factory=ResultConfig)

    def __post_init__(self) -> None:
        name, rates = self.results.result_filename, self.traffic.request_rate
        require(
            name is None or len(rates) == 1, "--result-filename", name, "unset with several rates"
        )


@dataclass(frozen=True, slots=True)
class BenchThroughputConfig:
    """Settings of `pagemesh bench throughput`: how much a model in this process answers when it is asked all at once."""

    model: ModelConfig
    dataset: DatasetConfig = field(default_factory=DatasetConfig)

    n: int = 1
    """Answers to each prompt."""

    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    output_json: str | None = None
    """File for the figures."""

    def __post_init__(self) -> None:
        require(1 <= self.n <= 1024, "--n", self.n, "from 1 to 1,024")


@dataclass(frozen=True, slots=True)
class BenchLatencyConfig:
    """Settings of `pagemesh bench latency`: how long a model in this process takes for one batch."""

    model: ModelConfig

    input_len: int = 32
    """Tokens of each prompt."""

    output_len: int = 128
    """Tokens of each answer."""

    batch_size: int = 8
    """Prompts of a batch."""

    n: int = 1
    """Answers to each prompt."""

    num_iters_warmup: int = 10
    """Batches before those that are measured."""

    num_iters: int = 30
    """Batches that are measured."""

    seed: int = 0
    """Of the prompts."""

    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    cache: CacheConfig = field(default_factory=lambda: CacheConfig(enable_prefix_caching=False))
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    output_json: str | None = None
    """File for the figures."""

    def __post_init__(self) -> None:
        _require_length("--input-len", self.input_len)
        _require_length("--output-len", self.output_len)
        require(
            1 <= self.batch_size <= 1_000_000,
            "--batch-size",
            self.batch_size,
            "from 1 to 1,000,000",
        )
        require(1 <= self.n <= 1024, "--n", self.n, "from 1 to 1,024")
        require(
            self.num_iters_warmup >= 0, "--num-iters-warmup", self.num_iters_warmup, "0 or more"
        )
        require(self.num_iters >= 1, "--num-iters", self.num_iters, "at least 1")
