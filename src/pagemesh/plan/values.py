"""A planned deployment as values for charts/pagemesh, each with the reason for its number."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from pagemesh.config.served import SHORT_NAMES, ShippedModel, split_gguf
from pagemesh.plan.commented_yaml import Noted, Tree, as_yaml
from pagemesh.plan.deployment import Deployment
from pagemesh.plan.report import sentence_of_limit
from pagemesh.plan.settings import DeploymentConfig
from pagemesh.plan.surroundings import KVSTORE_BYTES
from pagemesh.plan.worker import ALLOWANCE_GIB, Subject, host_memory
from pagemesh.sizing.plan import GIB, ITEM_BYTES, size_text

_IMAGE_FOLDER: Final = "/opt/pagemesh"
"""Below which the images have the models that ship."""

_CPU_BESIDE_A_GPU: Final = "4"
"""As in deploy/compose/gpu.yml: the engine prepares steps, and the worker sends and takes KV beside it."""

_DOWNLOAD_SECONDS: Final = 1800
"""What the chart gives workers for a download."""

_VOLUME_SPARE: Final = 1.25
"""Times the size of a model's files."""


class Served(NamedTuple):
    """What the chart says of a model as `pagemesh plan` was told."""

    model: str
    revision: str | None
    is_folder: bool
    dtype: str
    kv_cache_dtype: str
    max_model_len: int | None
    block_size: int
    gpu_memory_utilization: float
    quantization: str | None


def as_values(
    deployment: Deployment, config: DeploymentConfig, subject: Subject, served: Served
) -> str:
    """The file's text."""
    traffic = deployment.traffic
    head = (
        f"# Planned by `pagemesh plan {served.model}` for {traffic.request_rate:.3g} requests/s of"
        f" {traffic.prompt_tokens:.0f} tokens and {traffic.output_tokens:.0f} to generate,\n"
        f"# {config.goodput_share:g} of them within {' '.join(config.goodput)} ms. Rates of workers:"
        f" {deployment.worker.rates_source}.\n"
    )
    notes = "".join(f"# Note: {note}\n" for note in deployment.notes)
    return head + notes + as_yaml(_tree(deployment, config, subject, served))


def _tree(
    deployment: Deployment, config: DeploymentConfig, subject: Subject, served: Served
) -> Tree:
    around = deployment.surroundings
    tree: dict[str, Noted | Tree | list[Tree]] = {"models": [_model(served)]}
    if _source_type(served) == "hub":
        tree["modelCache"] = _model_cache(around.model_bytes)
    busy = "of {:.2f} cores that are busy, each to 70 %; {} spare."
    tree["gateway"] = {
        "replicas": Noted(
            around.gateways, "For Envoy, " + busy.format(around.gateway_cores, config.spare)
        )
    }
    tree["router"] = {
        "replicas": Noted(
            around.routers, "For routers, " + busy.format(around.router_cores, config.spare)
        ),
        "policy": Noted(config.policy, "As simulated."),
        **_router_download(served),
    }
    size, spare = deployment.size, deployment.spare
    why_prefill = (
        f"{deployment.least.prefill} are enough, {spare.prefill} spare."
        if size.prefill
        else "Decode workers that prefill by themselves need the fewest devices."
    )
    worker = _worker(deployment, subject, served)
    tree["prefill"] = {
        "replicas": Noted(size.prefill, why_prefill),
        **(worker if size.prefill else {}),
    }
    limit = sentence_of_limit(deployment)
    why_decode = f"{deployment.least.decode} are enough, {spare.decode} spare. {limit}".rstrip()
    tree["decode"] = {
        "replicas": Noted(size.decode, why_decode),
        **worker,
    }
    tree["kvstore"] = _kvstore(deployment)
    if around.kvstores > 1:
        tree["redis"] = {
            "type": Noted(
                "external",
                f"Several kvstores share an index: a Valkey with {size_text(around.valkey_bytes)} for it.",
            ),
            "host": Noted("valkey", "Put yours here."),
        }
    return tree


def _model_cache(model_bytes: int) -> Tree:
    gib = math.ceil(model_bytes * _VOLUME_SPARE / GIB) + 1
    why = f"{size_text(model_bytes)} of weights, a quarter more, and a tokenizer."
    return {
        "type": Noted("claim", "Downloaded once for all pods."),
        "size": Noted(f"{gib}Gi", why),
    }


def _model(served: Served) -> Tree:
    last = _last_part(served.model)
    name = re.sub("[^a-z0-9]+", "-", last.lower()).strip("-")[:20].strip("-") or "model"
    return {
        "name": Noted(name, ""),
        "servedName": Noted(
            served.model if _source_type(served) == "hub" else last, "What clients ask for."
        ),
        "source": _source(served),
        "dtype": Noted(served.dtype, ""),
        **_quantization(served),
        "maxModelLen": Noted(
            served.max_model_len or 0, "0 is the model's own. Longer ones need more KV."
        ),
        "blockSize": Noted(served.block_size, ""),
        "kvCacheDtype": Noted(served.kv_cache_dtype, ""),
    }


def _last_part(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _path(served: Served) -> str:
    """What was named, or what a short name stands for."""
    short = SHORT_NAMES.get(served.model)
    return served.model if short is None else short.path


def _source_type(served: Served) -> str:
    if ShippedModel(_path(served)) in SHORT_NAMES.values():
        return "bundled"
    return "claim" if served.is_folder else "hub"


def _source(served: Served) -> Tree:
    match _source_type(served):
        case "bundled":
            return {
                "type": Noted("bundled", "In the images."),
                "path": Noted(f"{_IMAGE_FOLDER}/{_path(served)}", ""),
            }
        case "claim":
            return {
                "type": Noted("claim", "A volume that has it; put its claim's name here."),
                "claimName": Noted("models", ""),
                "path": Noted(_last_part(_path(served)), ""),
            }
        case _:
            source = {
                "type": Noted("hub", ""),
                "repository": Noted(served.model, ""),
            }
            if served.revision:
                source["revision"] = Noted(served.revision, "")
            return source


def _quantization(served: Served) -> dict[str, Noted]:
    if served.quantization is None:
        return {}
    return {"quantization": Noted(served.quantization, "As planned.")}


def _router_download(served: Served) -> dict[str, Noted]:
    if _source_type(served) != "hub" or split_gguf(served.model) is None:
        return {}
    why = "Like workers, routers fetch the whole of a GGUF file."
    return {"startupTimeout": Noted(_DOWNLOAD_SECONDS, why)}


def _worker(deployment: Deployment, subject: Subject, served: Served) -> dict[str, Noted | Tree]:
    """What both kinds are told."""
    limits, memory = subject.limits, subject.memory
    tokens = deployment.worker.mesh.decode.kv_tokens
    tree: dict[str, Noted | Tree] = {
        "maxNumSeqs": Noted(limits.num_seqs, "As simulated, like the next."),
        "maxNumBatchedTokens": Noted(limits.num_tokens, ""),
    }
    if deployment.worker.kv_cache_gib is None:
        why = f"{size_text(memory.usable_bytes)}, of which {tokens} tokens of KV get the rest."
        return {
            "gpus": Noted(deployment.worker.num_devices, "A worker uses one."),
            "gpuMemoryUtilization": Noted(served.gpu_memory_utilization, why),
            **tree,
            **_beside_a_gpu(deployment, subject),
        }
    used = memory.usable_bytes - memory.cache_bytes
    why = f"{tokens} tokens, in what {size_text(used)} for all else leave of the memory."
    amount = f"{memory.usable_bytes // 2**20}Mi"
    return {
        "kvCacheMemory": Noted(deployment.worker.kv_cache_gib, why),
        **tree,
        "resources": Noted(
            {"requests": {"cpu": "1", "memory": amount}, "limits": {"memory": amount}},
            "The planned memory; as much CPU as a worker had when its rates were measured.",
        ),
    }


def _beside_a_gpu(deployment: Deployment, subject: Subject) -> dict[str, Noted | Tree]:
    """What a pod with a GPU takes of its node, and how one is replaced."""
    held_first = subject.spec is None
    model_bytes = deployment.surroundings.model_bytes
    if held_first:
        # As floats, whatever its files have.
        model_bytes = subject.num_parameters * ITEM_BYTES[subject.dtype]
    memory = host_memory(model_bytes, held_first=held_first)
    model = f"{size_text(model_bytes)} of model, " + (
        "which transformers reads into the host's memory first"
        if held_first
        else "whose files the node may keep in memory"
    )
    meanwhile = "a spare one is missing" if deployment.spare.decode else "the SLO may be missed"
    return {
        "resources": Noted(
            {
                "requests": {"cpu": _CPU_BESIDE_A_GPU, "memory": f"{memory.request}Gi"},
                "limits": {"memory": f"{memory.limit}Gi"},
            },
            f"The node's memory: {ALLOWANCE_GIB} GiB, an allowance, and {model}; swapSpace comes on top.",
        ),
        "maxSurge": Noted(0, "No GPU was planned for a pod more during an update."),
        "maxUnavailable": Noted(1, f"So pods are replaced one by one, and {meanwhile} meanwhile."),
    }


def _kvstore(deployment: Deployment) -> Tree:
    around = deployment.surroundings
    index = around.index_bytes if around.kvstores == 1 else 0
    request = math.ceil((KVSTORE_BYTES + index) / 2**20 / 64) * 64
    resources = {
        "requests": {"cpu": "250m", "memory": f"{request}Mi"},
        "limits": {"memory": f"{2 * request}Mi"},
    }
    return {
        "replicas": Noted(
            around.kvstores, f"For {around.lookups_per_second:.1f} lookups in a second."
        ),
        "resources": Noted(
            resources,
            f"{size_text(index)} for an index of {around.index_blocks} blocks; twice that while it is made anew.",
        ),
    }
