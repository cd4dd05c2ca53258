"""The output items of a response: an answer's parts as OpenAI's clients know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from pagemesh.router.chat.answer_parts import Part, PartKind
from pagemesh.router.openai.logprobs import TokenNames, chat_logprobs
from pagemesh.router.responses_api.tools import CustomTool, Tool, custom_input
from pagemesh.sampling.logprobs import TokenLogprobs

ItemStatus = Literal["in_progress", "completed", "incomplete"]
"""Only the last item of a response can be incomplete."""

_ID_PREFIXES: Final = {
    PartKind.REASONING: "rs",
    PartKind.TEXT: "msg",
    PartKind.TOOL_CALL: "fc",
}


class Items:
    """Makes the items of one response."""

    def __init__(
        self,
        request_id: str,
        tokens: TokenNames,
        tools: Sequence[Tool],
        *,
        has_logprobs: bool,
    ) -> None:
        """`tools` are those that may be called."""
        self._request_id = request_id
        self._tokens = tokens
        self._customs = {tool.name for tool in tools if isinstance(tool, CustomTool)}
        self._has_logprobs = has_logprobs

    def item_id(self, part: Part) -> str:
        """Names the item, the same in all its events."""
        prefix = "ctc" if self.is_custom(part) else _ID_PREFIXES[part.kind]
        return f"{prefix}_{self._request_id}_{part.index}"

    def is_custom(self, part: Part) -> bool:
        """Whether it calls a tool that takes a text."""
        return part.kind is PartKind.TOOL_CALL and part.name in self._customs

    def begun(self, part: Part) -> dict[str, Any]:
        """The item before anything is known of it."""
        item = self.whole(part.bare(), "in_progress")
        if part.kind is not PartKind.TOOL_CALL:
            item["content"] = []
        return item

    def whole(self, part: Part, status: ItemStatus) -> dict[str, Any]:
        """The item as far as it is known."""
        head = {"id": self.item_id(part), "status": status}
        match part.kind:
            case PartKind.REASONING:
                content = [self.content(part)]
                return {**head, "type": "reasoning", "summary": [], "content": content}
            case PartKind.TEXT:
                content = [self.content(part)]
                return {**head, "type": "message", "role": "assistant", "content": content}
            case PartKind.TOOL_CALL if self.is_custom(part):
                call = {
                    "call_id": part.call_id,
                    "name": part.name,
                    "input": custom_input(part.text),
                }
                return {**head, "type": "custom_tool_call", **call}
            case PartKind.TOOL_CALL:
                call = {"call_id": part.call_id, "name": part.name, "arguments": part.text}
                return {**head, "type": "function_call", **call}

    def content(self, part: Part) -> dict[str, Any]:
        """What is in the item of a thought or a text."""
        if part.kind is PartKind.REASONING:
            return {"type": "reasoning_text", "text": part.text}
        return {
            "type": "output_text",
            "text": part.text,
            "annotations": [],
            "logprobs": self.scores(part.logprobs),
        }

    def scores(self, logprobs: Sequence[TokenLogprobs]) -> list[Any]:
        """Log probabilities of a text's tokens, empty unless they were asked for."""
        if not self._has_logprobs:
            return []
        entries: list[Any] = chat_logprobs(logprobs, self._tokens)["content"]
        return entries
