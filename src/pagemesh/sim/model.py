"""What modelled workers and links are like: numbers from a file, or an example made of round figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import yaml

from pagemesh.core.load import PrefillRate
from pagemesh.errors import ConfigError
from pagemesh.sim.settings import MAX_TOKENS

_Model = TypeVar("_Model")

MAX_KV_TOKENS: Final = 100_000_000
"""Of one cache: all of its blocks are kept in memory."""

MAX_LAYERS: Final = 100_000

MAX_KV_BYTES: Final = 1_000_000_000
"""Of one token."""


def _positive(value: float, name: str) -> None:
    if not value > 0:
        raise ConfigError(f"{name} is {value!r}, but must be positive")


def _count(value: int, name: str, most: int) -> None:
    if not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r}, but must be from 1 to {most:,}")


def _not_negative(value: float, name: str) -> None:
    if not value >= 0:
        raise ConfigError(f"{name} is {value!r}, but must be 0 or more")


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """What prompts cost: the first three numbers of `PrefillRate`."""

    seconds_per_token: float = 40e-6
    """Of each token; 16 GFLOP at 400 TFLOP/s."""

    seconds_per_pair: float = 0.65e-9
    """Of each pair of a token and one that it attends to: 0.26 MFLOP at 400 TFLOP/s."""

    seconds_per_step: float = 6.4e-3
    """Of each engine step with prompts in it: 16 GB of weights at 2.5 TB/s."""

    def __post_init__(self) -> None:
        _not_negative(self.seconds_per_token, "prefill seconds_per_token")
        _not_negative(self.seconds_per_pair, "prefill seconds_per_pair")
        _not_negative(self.seconds_per_step, "prefill seconds_per_step")
        # A worker that has seen few prompts lays all on one of them.
        if not (self.seconds_per_token or self.seconds_per_pair or self.seconds_per_step):
            raise ConfigError(
                "prefill seconds_per_token, seconds_per_pair and seconds_per_step are 0, as of a worker"
                " that has measured nothing, but one must be positive"
            )


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """What generated tokens cost."""

    seconds_per_sequence: float = 40e-6
    """Of each sequence in the batch."""

    seconds_per_pair: float = 52e-9
    """Of each token that a sequence attends to: 128 KiB of KV at 2.5 TB/s."""

    seconds_per_step: float = 6.4e-3
    """Of each step without prompts; a step with prompts has that of prompts instead."""

    def __post_init__(self) -> None:
        _not_negative(self.seconds_per_sequence, "decode seconds_per_sequence")
        _not_negative(self.seconds_per_pair, "decode seconds_per_pair")
        _positive(self.seconds_per_step, "decode seconds_per_step")


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One kind of worker. The defaults are an example: a model of 8 billion parameters on one large GPU."""

    kv_tokens: int = 400_000
    """Tokens that the KV cache holds."""

    max_num_seqs: int = 64
    """Most requests in the running batch."""

    max_num_batched_tokens: int = 2048
    """Most tokens in one step."""

    max_model_len: int = 131_072
    """Longest prompt plus output."""

    prefill: PrefillModel = field(default_factory=PrefillModel)
    decode: DecodeModel = field(default_factory=DecodeModel)

    def __post_init__(self) -> None:
        _count(self.kv_tokens, "kv_tokens", MAX_KV_TOKENS)
        _count(self.max_num_seqs, "max_num_seqs", MAX_TOKENS)
        _count(self.max_num_batched_tokens, "max_num_batched_tokens", MAX_TOKENS)
        _count(self.max_model_len, "max_model_len", 2 * MAX_TOKENS)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens!r}, but must be at least"
                f" max_num_seqs, {self.max_num_seqs}"
            )

    def step_seconds(
        self, num_tokens: int, pairs: int, num_decodes: int, decode_pairs: int
    ) -> float:
        """A step that computes so much of prompts and so many decodes."""
        seconds = (
            num_decodes * self.decode.seconds_per_sequence
            + decode_pairs * self.decode.seconds_per_pair
        )
        if not num_tokens:
            return seconds + self.decode.seconds_per_step
        return (
            seconds
            + num_tokens * self.prefill.seconds_per_token
            + pairs * self.prefill.seconds_per_pair
            + self.prefill.seconds_per_step
        )

    def decode_run_seconds(self, num_steps: int, num_decodes: int, decode_pairs: int) -> float:
        """So many steps of decodes alone, the first of which has so many pairs."""
        added = num_decodes * (num_steps * (num_steps - 1) // 2)
        return (
            num_steps * self.step_seconds(0, 0, num_decodes, decode_pairs)
            + added * self.decode.seconds_per_pair
        )

    def prefill_rate(
        self,
        measured: PrefillModel,
        num_decodes: int,
        pairs_per_decode: float,
        pairs_per_token: float,
    ) -> PrefillRate:
        """What an engine reports that has measured this of prompts, while so many decodes run."""
        model, decode = measured, self.decode
        decodes = decode.seconds_per_sequence + pairs_per_decode * decode.seconds_per_pair
        return PrefillRate(
            model.seconds_per_token,
            model.seconds_per_pair,
            model.seconds_per_step + num_decodes * decodes,
            max(1, self.max_num_batched_tokens - num_decodes),
            pairs_per_token,
        )


@dataclass(frozen=True, slots=True)
class LinkModel:
    """The network port of each worker; the streams that use it at a time share it."""

    bytes_per_second: float = 25e9
    """In each direction."""

    latency_seconds: float = 0.001
    """From a call to its first message."""

    def __post_init__(self) -> None:
        _positive(self.bytes_per_second, "link bytes_per_second")
        _not_negative(self.latency_seconds, "link latency_seconds")


@dataclass(frozen=True, slots=True)
class MeshModel:
    """All that is measured of a mesh."""

    block_size: int = 16
    """Tokens per KV block."""

    num_layers: int = 32
    """Of the model; KV leaves layer by layer."""

    kv_bytes_per_token: int = 131_072
    """KV of one token, over all layers."""

    router_seconds: float = 0.004
    """From a request's arrival at a router to its decision: templates, tokens, names, the index."""

    network_seconds: float = 0.0005
    """Between router and worker, one way, and what both take to pass something on."""

    decode: WorkerModel = field(default_factory=WorkerModel)
    """Decode workers."""

    prefill: WorkerModel | None = None
    """Prefill workers; like decode workers when unset."""

    link: LinkModel = field(default_factory=LinkModel)

    cores: float | None = None
    """Cores of one machine that all workers share, each computing on one: a step takes longer while more of them
    compute than there are cores. The rates are those of a worker alone. None where each has its own."""

    measured: dict[str, PrefillModel] = field(default_factory=dict)
    """What single workers, by id, measured of prompts and tell routers, where that is not what prompts cost."""

    def __post_init__(self) -> None:
        _count(self.block_size, "block_size", MAX_TOKENS)
        _count(self.num_layers, "num_layers", MAX_LAYERS)
        _count(self.kv_bytes_per_token, "kv_bytes_per_token", MAX_KV_BYTES)
        if self.kv_bytes_per_token % (2 * self.num_layers):
            raise ConfigError(
                f"kv_bytes_per_token is {self.kv_bytes_per_token!r}, but must be a multiple of"
                f" {2 * self.num_layers}: keys and values in {self.num_layers} layers"
            )
        if self.cores is not None:
            _positive(self.cores, "cores")
        _not_negative(self.router_seconds, "router_seconds")
        _not_negative(self.network_seconds, "network_seconds")
        for name, worker in (("decode", self.decode), ("prefill", self.prefill)):
            if worker is not None and worker.kv_tokens < self.block_size:
                raise ConfigError(
                    f"{name} kv_tokens is {worker.kv_tokens!r}, but must be at least block_size,"
                    f" {self.block_size}"
                )

    @property
    def prefill_worker(self) -> WorkerModel:
        """What prefill workers are like."""
        return self.decode if self.prefill is None else self.prefill


def read_model(path: str) -> MeshModel:
    """A YAML or JSON file with the fields of `MeshModel`; those left out are those of the example.

    Raises ConfigError naming the file and the field.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--rates is {path!r}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # YAML's own errors show the place on lines of its own.
        reason = " ".join(str(error).split())
        raise ConfigError(f"--rates is {path!r}, which is no YAML: {reason}") from error
    try:
        return _build(MeshModel, content, "")
    except ConfigError as error:
        raise ConfigError(f"--rates is {path!r}: {error.message}") from error


def _build(model: type[_Model], content: object, where: str) -> _Model:
    """A dataclass from a mapping."""
    if not isinstance(content, dict):
        raise ConfigError(
            f"{where.rstrip('.') or 'the file'} is {content!r}, but must be a mapping"
        )
    hints = get_type_hints(model)
    known = {f.name for f in fields(model)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise ConfigError(f"{where}{name} is no field; there are {', '.join(sorted(known))}")
        values[name] = _value(hints[name], value, f"{where}{name}")
    return model(**values)


def _value(hint: Any, value: object, name: str) -> object:
    if hint == WorkerModel | None:
        if value is None:
            return None
        hint = WorkerModel
    if hint == dict[str, PrefillModel]:
        if not isinstance(value, dict):
            raise ConfigError(f"{name} is {value!r}, but must be a mapping")
        return {
            str(worker_id): _build(PrefillModel, entry, f"{name}.{worker_id}.")
            for worker_id, entry in value.items()
        }
    if is_dataclass(hint):
        return _build(hint, value, f"{name}.")  # type: ignore[arg-type]
    if hint == float | None:
        if value is None:
            return None
        hint = float
    if isinstance(value, str):
        # 4e-5 is text in YAML 1.1, where it has no dot.
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(f"{name} is {value!r}, but must be a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r}, but must be a number")
    if not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}, but must be a finite number")
    if hint is int:
        if value != int(value):
            raise ConfigError(f"{name} is {value!r}, but must be a whole number")
        return int(value)
    return float(value)
