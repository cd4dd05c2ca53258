"""What the demo model reads when a conversation has tools, calls, results or thoughts."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.late_imports import transformers

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.\nAsks a station nearby.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A city such as Zürich."},
                "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
                "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["city"],
        },
    },
}
BARE = {"name": "today"}
TOOLS_SECTION = """# Tools
<tools>
{"name": "get_weather", "description": "The weather in a city.", "parameters": \
{"city": "string", "unit": ["celsius", "kelvin"], "days": "any"}}
{"name": "today", "parameters": {}}
</tools>

To call one, answer with:
<tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call>"""
THOUGHTS_SECTION = "Begin with your thoughts: <think>thoughts</think>"
USER: dict[str, Any] = {"role": "user", "content": "How is Oslo?"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be kind."}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(DEMO)


def render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_tools_stand_in_the_system_turn(tokenizer: Any) -> None:
    expected = "<|im_start|>user\nHow is Oslo?<|im_end|>\n<|im_start|>assistant\n"
    options: dict[str, Any] = {"tools": [WEATHER, BARE], "add_generation_prompt": True}
    assert render(tokenizer, [USER], **options) == (
        f"<|im_start|>system\n{TOOLS_SECTION}<|im_end|>\n{expected}"
    )
    assert render(tokenizer, [SYSTEM, USER], **options) == (
        f"<|im_start|>system\nBe kind.\n\n{TOOLS_SECTION}<|im_end|>\n{expected}"
    )


def test_thoughts_are_asked_for_in_the_system_turn(tokenizer: Any) -> None:
    user = "<|im_start|>user\nHow is Oslo?<|im_end|>\n"
    assert render(tokenizer, [USER], enable_thinking=True) == (
        f"<|im_start|>system\n{THOUGHTS_SECTION}<|im_end|>\n{user}"
    )
    assert render(tokenizer, [SYSTEM, USER], tools=[WEATHER, BARE], enable_thinking=True) == (
        f"<|im_start|>system\nBe kind.\n\n{TOOLS_SECTION}\n\n{THOUGHTS_SECTION}<|im_end|>\n{user}"
    )


def test_without_tools_and_thoughts_nothing_is_added(tokenizer: Any) -> None:
    plain = "<|im_start|>user\nHow is Oslo?<|im_end|>\n"
    assert render(tokenizer, [USER]) == plain
    assert render(tokenizer, [USER], tools=[], enable_thinking=False) == plain


def test_calls_and_results_are_rendered(tokenizer: Any) -> None:
    both = [call("get_weather", {"city": "Zürich"}), call("today", '{"zone": "CET"}')]
    messages: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": both},
        {"role": "tool", "tool_call_id": "call_1", "content": "7 degrees"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Monday"},
        {"role": "assistant", "content": "One more.", "tool_calls": [call("today", "")]},
        {"role": "tool", "tool_call_id": "call_3", "content": "Monday"},
        {"role": "assistant", "content": "It is Monday."},
    ]
    assert (
        render(tokenizer, messages)
        == """<|im_start|>user
How is Oslo?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "get_weather", "arguments": {"city": "Zürich"}}
</tool_call>
<tool_call>
{"name": "today", "arguments": {"zone": "CET"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
7 degrees
</tool_response>
<tool_response>
Monday
</tool_response><|im_end|>
<|im_start|>assistant
One more.
<tool_call>
{"name": "today", "arguments": {}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
Monday
</tool_response><|im_end|>
<|im_start|>assistant
It is Monday.<|im_end|>
"""
    )
