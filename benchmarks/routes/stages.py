"""What the stages of a router's work take alone, of which a request's cost is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from report import Report
from routes.instant_workers import FINGERPRINT, name_blocks
from routes.prompts import Prompt

from pagemesh.router.openai.completion_request import parse_completion_request
from pagemesh.tokenizer.tokenizer import Tokenizer
from pagemesh.v1 import decode_pb2, kvstore_pb2

_REPEATS: Final = 10


def add_stages(
    report: Report, tokenizer: Tokenizer, prompts: Mapping[int, Prompt], model: str
) -> None:
    """CPU time of each stage for every length, on one thread."""
    for length, prompt in prompts.items():
        ids, text = prompt.token_ids, prompt.text
        names = name_blocks(ids)
        stages: dict[str, Callable[[], object]] = {
            "tokenizing": partial(tokenizer.encode_batch, [text], add_special_tokens=True),
            "naming blocks": partial(name_blocks, ids),
            "asking the kvstore": partial(_lookup, names),
            "submitting": partial(_submit, ids),
        }
        for form in ("text", "ids"):
            body = prompt.body(form, model)
            stages[f"reading {form}"] = partial(parse_completion_request, body)
        for stage, work in stages.items():
            report.add(f"{length} tokens: {stage}", "ms", [_cpu_ms(work) for _ in range(_REPEATS)])


def _cpu_ms(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return (time.thread_time() - started) * 1e3


def _lookup(names: list[bytes]) -> bytes:
    request = kvstore_pb2.LookupRequest(block_hashes=b"".join(names), model_fingerprint=FINGERPRINT)
    return request.SerializeToString()


def _submit(token_ids: list[int]) -> bytes:
    submit = decode_pb2.Submit(prompt_token_ids=token_ids)
    return decode_pb2.SessionRequest(submit=submit).SerializeToString()
