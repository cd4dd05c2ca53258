"""vLLM's build for CPUs. `--serve PORT` runs its HTTP server instead, after the line with the settings.

`--prepare FOLDER WAY` writes the checkpoint in a format that vLLM has kernels for, once, beside it: compressed-tensors
with 8 bits of weights and of activations, or with 4 bits of weights. The output head stays as it is, as in what people
make with its tools.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from protocol import serve

if TYPE_CHECKING:
    import torch

_GROUP: Final = 128
"""Inputs that share a scale at 4 bits."""


class VllmEngine:
    """`vllm.LLM`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        _set_environment(settings)
        from vllm import LLM

        self._llm = LLM(
            model=str(_model_of(settings)),
            dtype=settings["dtype"],
            max_model_len=settings["max_model_len"],
            max_num_seqs=settings["max_num_seqs"],
        )

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        from vllm import SamplingParams

        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in num_tokens]
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


def _set_environment(settings: dict[str, Any]) -> None:
    """What is read when vllm is imported. Left to itself, it keeps a core for other things."""
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(settings["kv_cache_memory"])))
    cores = sorted(os.sched_getaffinity(0))[: settings["threads"]]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))


def _become_server(settings: dict[str, Any], port: str) -> None:
    """vLLM's server in place of this process; the model's name is that of its folder."""
    _set_environment(settings)
    flags = {
        "--model": str(_model_of(settings)),
        "--served-model-name": Path(settings["model"]).name,
        "--dtype": settings["dtype"],
        "--max-model-len": str(settings["max_model_len"]),
        "--max-num-seqs": str(settings["max_num_seqs"]),
        "--host": "127.0.0.1",
        "--port": port,
        "--uvicorn-log-level": "warning",
    }
    # The command `vllm` asks for the version of a package by that name, which this build does not have.
    # With -P it does not find the folder it is started in, where transformers may meet a module `kernels`.
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    os.execv(sys.executable, [*command, *(part for flag in flags.items() for part in flag)])


def _model_of(settings: Mapping[str, Any]) -> Path:
    """The checkpoint, or what it was quantised to."""
    model, way = Path(settings["model"]), settings["quantization"]
    return model if way is None else model.with_name(f"{model.name}-compressed-tensors-{way}")


def _write_quantised(model: Path, way: str) -> None:
    folder = _model_of({"model": model, "quantization": way})
    if folder.is_dir():
        return
    from safetensors.torch import load_file, save_file

    draft = folder.with_name(f"{folder.name}-draft")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(model, draft, ignore=shutil.ignore_patterns("*.safetensors*"))
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(model.glob("*.safetensors")):
        for name, weight in load_file(file).items():
            module = name.removesuffix(".weight")
            if module.endswith("_proj"):
                weights |= {f"{module}.{part}": it for part, it in _WAYS[way](weight).items()}
            else:
                weights[name] = weight
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = _settings_of(way)
    (draft / "config.json").write_text(json.dumps(config))
    draft.rename(folder)


def _eight_bits(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    import torch

    scale = weight.float().abs().amax(-1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def _four_bits(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    import torch
    from compressed_tensors.compressors import pack_to_int32

    groups = weight.float().view(len(weight), -1, _GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / 7.5
    codes = (groups / scale).round().clamp(-8, 7).to(torch.int8).view(weight.shape)
    return {
        "weight_packed": pack_to_int32(codes, 4),
        "weight_scale": scale.squeeze(-1).to(weight.dtype),
        "weight_shape": torch.tensor(weight.shape),
    }


_WAYS: Final[Mapping[str, Callable[[torch.Tensor], dict[str, torch.Tensor]]]] = {
    "int8": _eight_bits,
    "int4": _four_bits,
}


def _settings_of(way: str) -> dict[str, Any]:
    """`quantization_config`."""
    numbers = {"type": "int", "symmetric": True, "dynamic": False}
    scheme: dict[str, Any] = {"targets": ["Linear"]}
    if way == "int8":
        scheme["weights"] = numbers | {"num_bits": 8, "strategy": "channel"}
        scheme["input_activations"] = numbers | {
            "num_bits": 8,
            "strategy": "token",
            "dynamic": True,
        }
    else:
        scheme["weights"] = numbers | {"num_bits": 4, "strategy": "group", "group_size": _GROUP}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if way == "int8" else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _become_server(json.loads(sys.stdin.readline()), sys.argv[2])
    elif sys.argv[1:2] == ["--prepare"]:
        for way in sys.argv[3:]:
            _write_quantised(Path(sys.argv[2]), way)
    else:
        serve(VllmEngine)
