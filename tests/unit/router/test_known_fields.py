"""Every field that clients of OpenAI or vLLM may send is served, refused or ignored, as the documents say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.openai.completion_request import CompletionRequest
from pagemesh.router.openai.unsupported import NEUTRAL_VALUES
from tests.support.late_imports import openai

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/openai-api.md"

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
"""Parameters of methods that are no fields of bodies."""

VLLM_BOTH = [
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "ec_transfer_params",
    "ignore_eos",
    "include_stop_str_in_output",
    "kv_transfer_params",
    "length_penalty",
    "logprob_token_ids",
    "min_p",
    "min_tokens",
    "priority",
    "prompt_logprobs",
    "repetition_detection",
    "repetition_penalty",
    "request_id",
    "response_format",
    "return_mm_kwargs",
    "return_token_ids",
    "return_token_offsets",
    "return_tokens_as_token_ids",
    "routed_experts_prompt_start",
    "session_id",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "stream_interval",
    "structured_outputs",
    "thinking_token_budget",
    "top_k",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "vllm_xargs",
    "watermarking",
]
"""What vLLM's requests have besides OpenAI's, as of its main branch in November 2026."""

VLLM_CHAT = [
    "add_generation_prompt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "echo",
    "include_reasoning",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "return_prompt_text",
]

VLLM_COMPLETION = ["prompt_embeds"]

OLD = [
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_whitespace_pattern",
]
"""What older versions of vLLM had, and clients still send."""


IGNORED: Mapping[str, str] = {
    "length_penalty": "it is about beams, which are refused",
    "metadata": "nothing is stored that it could be found by",
    "moderation": "vLLM does not know it, and ignores it",
    "prediction": "it may only make an answer faster, never another one",
    "prompt_cache_options": "prefixes are found by what they are",
    "prompt_cache_retention": "prefixes are kept while there is room",
    "request_id": "requests are named by the header x-request-id",
    "return_mm_kwargs": "as in vLLM, where only other routes know it",
    "return_token_offsets": "as in vLLM, where only other routes know it",
    "routed_experts_prompt_start": "routed experts are never told",
    "safety_identifier": "nobody looks at it",
    "service_tier": "there is one tier",
    "spaces_between_special_tokens": "no spaces are put between tokens, whatever it says",
    "store": "nothing is stored",
    "verbosity": "vLLM does not know it, and ignores it",
    "vllm_xargs": "as in vLLM without extensions",
}
"""Accepted, with the reason why nothing changes: the code does not know them."""


def parameters(method: Any) -> set[str]:
    return set(inspect.signature(method).parameters) - OF_THE_CLIENT


def all_fields(route: str) -> set[str]:
    if route == CHAT:
        return parameters(openai.resources.chat.Completions.create) | {*VLLM_BOTH, *VLLM_CHAT, *OLD}
    return parameters(openai.resources.Completions.create) | {*VLLM_BOTH, *VLLM_COMPLETION, *OLD}


def what_happens(route: str) -> Mapping[str, str]:
    """Each field with `served`, `refused` or `ignored`; one that is two things fails."""
    served = set((ChatRequest if route == CHAT else CompletionRequest).model_fields)
    ways = {
        "served": served,
        "refused": set(NEUTRAL_VALUES) - served,
        "ignored": set(IGNORED),
    }
    found: dict[str, str] = {}
    for way, names in ways.items():
        for name in names:
            assert name not in found, f"{name} is {found[name]} and {way}"
            found[name] = way
    return found


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_it_is_decided_what_happens_to_every_field(route: str) -> None:
    """A new version of the client that brings a field makes this fail: decide, and write it down."""
    assert all_fields(route) - what_happens(route).keys() == set()


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_the_documents_say_what_happens_to_every_field(route: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.split(f"## `{route}`", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([^|]*)` \| (served|refused|ignored) \|", section, re.MULTILINE)
    told = {name: way for names, way in rows for name in names.split("`, `")}
    actual = what_happens(route)
    expected = {name: actual[name] for name in all_fields(route)}
    assert told == expected
