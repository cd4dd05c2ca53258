"""Every flag of `vllm serve`, and those of older guides, that is not simply ours: what it means here.

A flag that is in neither table nor among ours is unknown. Names as of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pagemesh.cli.vllm.rules import Rule, always, no_effect, planned, refused, renamed, same
from pagemesh.config.engine import LOAD_FORMATS

GGUF_FILE: Final = "--gguf-file"

LOAD_FORMAT: Final = "--load-format"

_REPLICAS: Final = (
    "write --decode N for N workers, or put several machines into one mesh with the Helm chart"
)
_TENSOR: Final = "no layer is shared among devices yet, so a model has to fit on one; `pagemesh plan MODEL` says whether it does"
_IN_PATHS: Final = (
    "KV moves between workers by itself, in memory or by gRPC; write --prefill N and --decode N"
)
_ENVOY: Final = "the HTTP server is Envoy; write --max-header-size, --max-connections or --body-timeout for its limits"
_TRACES: Final = "write --otlp-traces-endpoint, which traces every request through all processes"

_ONE_BY_ONE: Final[Mapping[str, Rule]] = {
    "--device-memory-utilization": renamed("--gpu-memory-utilization"),
    "--max-num-queued-reqs": renamed("--max-waiting-requests"),
    "--shutdown-timeout": renamed("--grace-period"),
    "--uvicorn-log-level": renamed("--log-level", critical="error", trace="debug"),
    "--dtype": renamed("--dtype", half="float16", float="float32"),
    "--enable-chunked-prefill": always("prompts are always computed in chunks"),
    "--enable-prompt-tokens-details": always("usage.prompt_tokens_details is always told"),
    "--disable-custom-all-reduce": always("no result is reduced over devices"),
    "--disable-cascade-attn": always(
        "attention over a common prefix gives the same bits as without"
    ),
    "--disable-uvicorn-access-log": always("there is no uvicorn; --log-dir writes an access log"),
    "--enable-request-id-headers": always("every answer has x-request-id"),
    "--disable-log-requests": always("requests are logged with --enable-log-requests alone"),
    "--disable-log-stats": no_effect("what a worker does is in its metrics, and not logged"),
    "--num-scheduler-steps": no_effect(
        "each step is scheduled; --async-scheduling hides its cost", takes_value=True
    ),
    "--lora-extra-vocab-size": no_effect("adapters add no tokens", takes_value=True),
    "--preemption-mode": no_effect(
        "each preemption swaps or recomputes, whichever is sooner; --swap-space gives it room to swap to",
        "recompute",
        "swap",
    ),
    LOAD_FORMAT: no_effect(
        "a model's files are read as what they are, safetensors or GGUF; another format than theirs is refused",
        *LOAD_FORMATS,
    ),
    "--safetensors-load-strategy": no_effect(
        "weights are mapped, and read once", "lazy", "auto", "eager", "prefetch"
    ),
    "--max-parallel-loading-workers": no_effect("each worker loads for itself", takes_value=True),
    "--use-tqdm-on-load": no_effect("loading shows no progress bar"),
    "--disable-fastapi-docs": no_effect(
        "the API's document is at /openapi.json, pages are not served"
    ),
    "--api-server-count": refused("write --router N for N routers behind the gateway", "1", "0"),
    "--renderer-num-workers": no_effect(
        "routers render prompts; --router N has N of them", takes_value=True
    ),
    "--trust-remote-code": no_effect(
        "code in a model's folder is never run; a model that needs it is refused when it is loaded"
    ),
    "--tokenizer-mode": no_effect("tokenizers are those of tokenizer.json", "auto", "hf", "fast"),
    "--config-format": no_effect("models are read from config.json", "auto", "hf"),
    "--runner": no_effect("a model's config.json says what it does", "auto", "generate", "pooling"),
    "--convert": no_effect("a model's config.json says what it does", "auto", "none", "embed"),
    "--tokenizer": same("a folder of links with that tokenizer is served"),
    "--hf-overrides": same("a folder of links with such a config.json is served"),
    "--rope-scaling": same("a folder of links with such a config.json is served"),
    "--rope-theta": same("a folder of links with such a config.json is served"),
    "--hf-config-path": refused("a model is one folder, config.json included"),
    "--tokenizer-revision": refused("--revision is that of the whole model"),
    "--code-revision": refused("code in a model's folder is never run"),
    "--skip-tokenizer-init": refused(
        "routers find prefixes by tokens; send `prompt` as token ids where you have them"
    ),
    "--enable-log-outputs": refused(
        "answers are not logged; --enable-log-requests logs prompts at --log-level debug"
    ),
    "--response-role": refused("answers are the assistant's", "assistant"),
    "--scheduling-policy": refused(
        "requests are served in turn; tenants have limits of their own", "fcfs"
    ),
    "--logprobs-mode": refused(
        "log probabilities are those before sampling changes them", "raw_logprobs"
    ),
    "--kv-transfer-config": refused(_IN_PATHS),
    "--config": refused("write what the file says as flags"),
    "--hf-token": refused(
        "put it into the environment as HF_TOKEN, where other users do not see it"
    ),
    "--middleware": refused("put a proxy, or a filter of Envoy's, in front of the gateway"),
    "--uds": refused("write --host 127.0.0.1, which no other machine reaches"),
    "--root-path": refused("let the proxy in front take its prefix off"),
    "--headless": refused("start a worker alone by `pagemesh decode` or `pagemesh prefill`"),
    "--grpc": refused(
        "every router speaks gRPC: `pagemesh router --port N`, and protos/pagemesh/v1/inference.proto"
    ),
    "--grpc-port": refused("every router speaks gRPC: `pagemesh router --port N`"),
    "--num-gpu-blocks-override": refused("write --kv-cache-memory with GiB"),
    "--kv-cache-memory-bytes": refused("write --kv-cache-memory with GiB"),
    "--scheduler-reserve-full-isl": no_effect("a prompt is admitted when its KV has room"),
    "--max-num-partial-prefills": no_effect("prompts share a step as they fit", takes_value=True),
    "--max-long-partial-prefills": no_effect("prompts share a step as they fit", takes_value=True),
    "--tool-server": refused("tools are the client's to call"),
    "--collect-detailed-traces": refused(_TRACES),
    "--show-hidden-metrics-for-version": no_effect("no metric is hidden", takes_value=True),
    "--disable-sliding-window": refused("windows are part of a model"),
    GGUF_FILE: same("the name of a file in the folder, or the repository, that --model names"),
    "--enable-lora": planned(
        "no adapters are served yet; merge one into a copy of the model, and serve that"
    ),
    "--swa-bounded-replay": no_effect("blocks that left a window are not computed again"),
    "--optimization-level": no_effect(
        "nothing is compiled for a model but its kernels", takes_value=True
    ),
    "--compilation-config": no_effect(
        "nothing is compiled for a model but its kernels", takes_value=True
    ),
    "--fail-on-environ-validation": no_effect("variables of vLLM's never end a start"),
    "--cpu-offload-gb": planned(
        "weights are on one device; `pagemesh plan MODEL` says what fits", "0"
    ),
    "--kv-offloading-size": renamed("--swap-space"),
    "--distributed-executor-backend": no_effect("each worker is a process of its own", "mp", "uni"),
}

_TOGETHER: Final[tuple[tuple[Rule, str], ...]] = (
    (planned(_TENSOR, "1"), "--tensor-parallel-size --pipeline-parallel-size"),
    (planned(_REPLICAS, "1"), "--data-parallel-size --nnodes"),
    (
        planned("experts of a layer are on one device"),
        "--enable-expert-parallel --enable-eplb --eplb-config --expert-placement-strategy --all2all-backend"
        " --enable-dbo --dbo-decode-token-threshold --dbo-prefill-token-threshold --ubatch-size --enable-elastic-ep"
        " --elastic-ep-max-dp-size --enable-ep-weight-filter --moe-backend",
    ),
    (
        planned("a prompt's KV is on one device", "1"),
        "--decode-context-parallel-size --prefill-context-parallel-size",
    ),
    (
        planned("a prompt's KV is on one device"),
        "--cp-kv-cache-interleave-size --dcp-comm-backend --dcp-kv-cache-interleave-size --dcp-q-replicate"
        " --enable-batch-sharded-sampling --enable-hc-sp",
    ),
    (
        refused(_REPLICAS),
        "--data-parallel-address --data-parallel-backend --data-parallel-external-lb --data-parallel-hybrid-lb"
        " --data-parallel-multi-port-external-lb --data-parallel-rank --data-parallel-rpc-port"
        " --data-parallel-size-local --data-parallel-start-rank --data-parallel-supervisor-port"
        " --dp-supervisor-probe-failure-threshold --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s"
        " --dp-sync-interval --master-addr --master-port --node-rank --distributed-timeout-seconds"
        " --cpu-distributed-timeout-seconds --disable-nccl-for-dp-synchronization --enable-nccl-comm-suspend"
        " --ray-workers-use-nsight --enable-scale-out --enable-fault-tolerance --fault-tolerance-config --worker-cls"
        " --worker-extension-cls --scheduler-cls",
    ),
    (
        planned("no adapters are served yet; merge one into a copy of the model, and serve that"),
        "--lora-modules --max-loras --max-lora-rank --max-cpu-loras --max-lora-cls-labels --lora-dtype"
        " --lora-target-modules --fully-sharded-loras --specialize-active-lora --default-mm-loras"
        " --enable-moe-shared-loras --enable-mixed-moe-lora-format --enable-tower-connector-lora",
    ),
    (
        refused(
            "write --quantization fp8, int8 or int4, which quantises a dense checkpoint while it is loaded"
        ),
        "--quantization-config",
    ),
    (no_effect("no format that can be read is deprecated"), "--allow-deprecated-quantization"),
    (
        planned("no draft model speculates yet; leave it out, the tokens are the same"),
        "--speculative-config --speculative-model --num-speculative-tokens --speculative-draft-tensor-parallel-size"
        " --spec-method --spec-model --spec-tokens --per-request-spec-decode-metrics",
    ),
    (
        refused("text is all that models get here"),
        "--allowed-local-media-path --allowed-media-domains --disable-chunked-mm-input --enable-mm-embeds"
        " --interleave-mm-strings --io-processor-plugin --language-model-only --limit-mm-per-prompt --media-io-kwargs"
        " --mm-device-do-normalize --mm-encoder-attn-backend --mm-encoder-attn-dtype --mm-encoder-fp8-scale-path"
        " --mm-encoder-fp8-scale-save-margin --mm-encoder-fp8-scale-save-path --mm-encoder-only --mm-encoder-tp-mode"
        " --mm-hasher-algorithm --mm-ipc-gpu-memory-gb --mm-processor-cache-gb --mm-processor-cache-type"
        " --mm-processor-device --mm-processor-kwargs --mm-shm-cache-max-object-size-mb --mm-tensor-ipc"
        " --skip-mm-profiling --trust-request-mm-kwargs --video-pruning-method --video-pruning-rate"
        " --ec-manager-config --ec-transfer-config --enable-prompt-embeds --enable-shm-tensor-arena"
        " --diffusion-config",
    ),
    (
        refused("no model with states besides KV is served"),
        "--enable-mamba-cache-stochastic-rounding --enable-mamba-shared-prefix-checkpoint --mamba-backend"
        " --mamba-block-size --mamba-cache-dtype --mamba-cache-mode --mamba-cache-philox-rounds"
        " --mamba-ssm-cache-dtype --mamba-ssu-algorithm --gdn-prefill-backend --kda-decode-backend"
        " --kda-prefill-backend --use-replayssm --replayssm-buffer-len --engram-config",
    ),
    (
        refused(
            "kernels are chosen by what gives the same tokens on every path; --cpu-isa and --device choose more"
        ),
        "--attention-backend --attention-config --kernel-config --linear-backend --ir-op-priority --model-class-overrides"
        " --sparse-indexer-topk-backend --use-fp64-gumbel --additional-config",
    ),
    (
        refused(_IN_PATHS),
        "--kv-events-config --kv-offloading-backend --kv-sharing-fast-prefill --weight-transfer-config",
    ),
    (
        planned("weights are on one device; `pagemesh plan MODEL` says what fits"),
        "--cpu-offload-params --offload-backend --offload-group-size --offload-num-in-group --offload-params"
        " --offload-prefetch-step",
    ),
    (
        refused("stop the mesh, and start it again"),
        "--enable-sleep-mode --sleep-mode-offload-cudagraph --sleep-preserve-parameter-names"
        " --enable-cumem-allocator",
    ),
    (
        refused("KV is named by the tokens before it, and kept as long as there is room"),
        "--prefix-caching-hash-algo --prefix-match-unit --prefix-cache-retention-interval"
        " --kv-cache-dtype-skip-layers --disable-hybrid-kv-cache-manager",
    ),
    (
        refused(_ENVOY),
        "--h11-max-header-count --h11-max-incomplete-event-size --enable-ssl-refresh --ssl-ciphers",
    ),
    (
        refused(
            "the gateway's access log is written with --log-dir, and logs are JSON lines on stderr"
        ),
        "--disable-access-log-for-endpoints --log-config-file --logging-config --log-error-stack --enable-log-deltas"
        " --enable-logging-iteration-details --aggregate-engine-logging",
    ),
    (
        refused("see docs/metrics.md for the metrics that there are, which are always on"),
        "--custom-histogram-buckets --cudagraph-metrics --enable-mfu-metrics --enable-per-request-metrics"
        " --kv-cache-metrics --kv-cache-metrics-sample",
    ),
    (refused(_TRACES), "--enable-layerwise-nvtx-tracing --profiler-config --enable-trace-replay"),
    (
        refused(
            "which steps are captured as graphs follows from --max-num-seqs and --max-num-batched-tokens;"
            " --enforce-eager captures none"
        ),
        "--cudagraph-capture-sizes --max-cudagraph-capture-size",
    ),
    (
        refused("--max-num-batched-tokens is the one budget of a step"),
        "--long-prefill-token-threshold --long-prefill-token-threshold-adaptive --max-num-active-seqs"
        " --max-num-scheduled-tokens --prefill-schedule-interval --watermark --watermark-config"
        " --max-num-queued-tokens",
    ),
    (
        refused("write --tool-call-parser or --reasoning-parser with one of theirs, or none"),
        "--tool-parser-plugin --reasoning-parser-plugin --reasoning-config --tool-strict-level"
        " --structured-outputs-config --anthropic-disabled-thinking-effort",
    ),
    (
        refused("write --threads for cores, and CUDA_VISIBLE_DEVICES for GPUs"),
        "--numa-bind --numa-bind-cpus --numa-bind-nodes --device-ids",
    ),
    (
        refused("weights are read from the safetensors of the model's folder"),
        "--model-loader-extra-config --ignore-patterns --pt-load-map-location --safetensors-prefetch-block-size"
        " --safetensors-prefetch-num-threads",
    ),
    (
        refused("requests say it, as the OpenAI API has it"),
        "--logits-processors --return-sampling-mask --tokens-only"
        " --enable-return-routed-experts --aux-output-config --pooler-config --enable-flash-late-interaction"
        " --cohere-format --cohere-is-reasoning-model --fingerprint-mode --fingerprint-value"
        " --sse-keep-alive-interval --enable-offline-docs",
    ),
    (
        no_effect("GET /load always says how many requests there are"),
        "--enable-server-load-tracking",
    ),
    (
        no_effect("nothing is tuned or compiled while it serves"),
        "--enable-flashinfer-autotune --jit-monitor-verbose",
    ),
    (
        no_effect("nothing is tuned or compiled while it serves", takes_value=True),
        "--jit-monitor-mode",
    ),
)

RULES: Final[Mapping[str, Rule]] = {
    **_ONE_BY_ONE,
    **{flag: rule for rule, flags in _TOGETHER for flag in flags.split()},
}
"""By flag, in its positive form."""

MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "balanced": {},
    "throughput": {"--max-num-seqs": "512", "--max-num-batched-tokens": "8192"},
    "interactivity": {"--max-num-seqs": "32", "--max-num-batched-tokens": "256"},
}
"""What --performance-mode stands for, as far as nothing else is said: large steps are cheap for each token, and short
ones let nobody wait."""

SWITCHES: Final[Mapping[str, tuple[str, str]]] = {"--async-scheduling": ("on", "off")}
"""Flags of ours that take a value where vLLM's are switches: what the switch says, and what it says with `no-`."""

REFUSED_VALUES: Final[Mapping[tuple[str, str], str]] = {
    (
        "--kv-cache-dtype",
        "fp8_e5m2",
    ): "two bits of a number are too few for KV; write fp8, which has three",
}
"""Of flags of ours, with what to write instead."""

UNSET_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "--max-model-len": ("auto", "-1"),
    "--quantization": ("None",),
    "--seed": ("None",),
}
"""Of flags of ours, those that stand for leaving it out."""

OVERRIDES: Final = "--hf-overrides"

CHANGING: Final[Mapping[str, str | None]] = {
    OVERRIDES: None,
    "--rope-scaling": "rope_scaling",
    "--rope-theta": "rope_theta",
}
"""Flags whose value is JSON for config.json: that of a key, or an object of keys."""

OBJECTS: Final = ("--default-chat-template-kwargs", "--override-generation-config")
"""Flags of ours whose value is a JSON object, of which vLLM also takes one member at a time: --flag.name value."""

SHORT: Final[Mapping[str, str]] = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-O": "--optimization-level",
    "-cc": "--compilation-config",
    "-sc": "--speculative-config",
}
