"""What guides that are written for vLLM have people type, with other names for the program, the model and a file."""

from __future__ import annotations

from typing import Final

API_SERVER: Final = "python -m PROGRAM.entrypoints.openai.api_server"

SERVERS: Final = (
    "PROGRAM serve MODEL",
    f"{API_SERVER} --model MODEL",
    f"{API_SERVER} --model MODEL --tensor-parallel-size 1 --gpu-memory-utilization 0.90 --port 8000",
    f"{API_SERVER} --model MODEL --max-num-batched-tokens 32k --enable-chunked-prefill",
    "python -m PROGRAM.entrypoints.api_server --model MODEL --dtype bfloat16 --max-num-seqs 1024"
    " --gpu-memory-utilization 0.9",
    "PROGRAM serve MODEL --port 8000",
    "PROGRAM serve MODEL --port 8000 --enable-prefix-caching",
    "PROGRAM serve MODEL --enable-chunked-prefill --max-num-batched-tokens 2048",
    "PROGRAM serve MODEL --gpu-memory-utilization 0.90 --max-model-len 1024 --max-num-seqs 256"
    " --max-num-batched-tokens 32768 --tensor-parallel-size 1 --pipeline-parallel-size 1 --dtype auto --host 0.0.0.0"
    " --port 8000 --api-key your-secret-key",
    "PROGRAM serve MODEL --gpu-memory-utilization 0.95 --max-num-seqs 512 --max-model-len 1024"
    " --enable-prefix-caching --enable-chunked-prefill",
    "PROGRAM serve MODEL --gpu-memory-utilization 0.85 --max-num-seqs 32 --max-model-len 1024"
    " --num-scheduler-steps 1",
    "PROGRAM serve MODEL --enforce-eager",
    "PROGRAM serve MODEL --swap-space 16",
    "PROGRAM serve MODEL --preemption-mode recompute",
    "PROGRAM serve MODEL --dtype bfloat16 --max-num-seqs 1024 --gpu-memory-utilization 0.9",
    "PROGRAM serve MODEL --load-format auto",
    "PROGRAM serve MODEL --block-size 16",
    "PROGRAM serve MODEL --tokenizer MODEL",
)

QUANTISED: Final = (
    "PROGRAM serve MODEL-FP8 --quantization fp8",
    "PROGRAM serve MODEL-AWQ --quantization awq --gpu-memory-utilization 0.85 --max-model-len 4096",
    "PROGRAM serve --model MODEL-GGUF --quantization gguf --gguf-file FILE.Q4_K_M.gguf",
    "PROGRAM serve MODEL --kv-cache-dtype fp8",
)
"""Servers, too."""

PROGRAMS: Final = (
    'python -c "from PROGRAM import LLM, SamplingParams;'
    " print(LLM(model='MODEL').generate(['Hello'], SamplingParams(max_tokens=4))[0].outputs[0].text)\"",
    "PROGRAM bench throughput --model MODEL --input-len 512 --output-len 128 --num-prompts 1000",
    "PROGRAM bench latency --model MODEL --input-len 512 --output-len 128 --batch-size 1",
)

LOAD: Final = (
    "PROGRAM bench serve --backend openai-chat --model MODEL --dataset-name sharegpt --dataset-path FILE"
    " --num-prompts 1000 --request-rate 10"
)
"""Asks a server on port 8000."""
