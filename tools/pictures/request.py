"""The life of a request that is prefilled on another worker, as calls over time."""

from __future__ import annotations

from typing import Final, NamedTuple

from pagemesh.v1 import (
    decode_pb2,
    kv_transfer_pb2,
    kvstore_pb2,
    openai_pb2,
    prefill_pb2,
)
from tools.pictures.svg import Drawing

_LANES: Final = ("client", "gateway", "router", "kvstore", "decode", "prefill")
_COLOURS: Final = ("plain", "plain", "blue", "violet", "green", "amber")
_LEFT, _STEP, _TOP, _ROW = 80, 178, 70, 40


class Message(NamedTuple):
    """One arrow."""

    sender: str
    receiver: str
    text: str
    rpc: str = ""
    """Service/Method, which must be one of the protos'."""
    is_answer: bool = False


_MESSAGES: Final = (
    Message("client", "gateway", "POST /v1/chat/completions"),
    Message("gateway", "router", "", "OpenAI/ChatCompletions"),
    Message("router", "router", "template, tokens, block hashes"),
    Message("router", "kvstore", "", "KvStore/Lookup"),
    Message("kvstore", "router", "who holds how much", is_answer=True),
    Message("router", "router", "chooses worker and way"),
    Message("router", "decode", "submit", "Decode/Session"),
    Message("decode", "decode", "reserves blocks"),
    Message("decode", "prefill", "", "Prefill/Prefill"),
    Message("prefill", "decode", "KV of chunk 1", is_answer=True),
    Message("prefill", "decode", "KV of chunk 2", is_answer=True),
    Message("prefill", "decode", "first token", is_answer=True),
    Message("decode", "router", "token 1", is_answer=True),
    Message("router", "client", "first server-sent event", is_answer=True),
    Message("prefill", "decode", "the last KV", is_answer=True),
    Message("decode", "decode", "verified: joins the batch"),
    Message("decode", "router", "a token per step", is_answer=True),
    Message("router", "client", "text, as it comes", is_answer=True),
    Message("decode", "kvstore", "blocks, load", "KvStore/Publish"),
)


def draw() -> str:
    """The picture."""
    height = _TOP + _ROW * (len(_MESSAGES) + 1)
    drawing = Drawing(1060, height, "The life of a request, call by call")
    for number, (lane, colour) in enumerate(zip(_LANES, _COLOURS, strict=True)):
        x = _LEFT + number * _STEP
        drawing.line((x, 50), (x, height - 14), arrow=False, dashed=True, width=1)
        drawing.box(x - 58, 14, 116, 36, colour)
        drawing.words(x, 37, lane, anchor="middle", bold=True, size=15)
    for number, message in enumerate(_MESSAGES, 1):
        _draw_message(drawing, message, _TOP + _ROW * number - 14)
    return drawing.text()


def _draw_message(drawing: Drawing, message: Message, y: float) -> None:
    sender, receiver = (
        _LEFT + _LANES.index(lane) * _STEP for lane in (message.sender, message.receiver)
    )
    text = " ".join(filter(None, (_known(message.rpc), message.text)))
    if sender == receiver:
        width = 16 + 7 * len(text)
        drawing.box(sender - width / 2, y - 19, width, 24)
        drawing.words(sender, y - 2, text, anchor="middle", size=12.5)
        return
    drawing.line(
        (sender, y), (receiver, y), colour="line" if message.is_answer else "accent",
        dashed=message.is_answer,
    )  # fmt: skip
    drawing.words(
        (sender + receiver) / 2, y - 6, text, anchor="middle", size=12.5, halo=True,
        bold=bool(message.rpc),
    )  # fmt: skip


def _known(rpc: str) -> str:
    """The method's name. Raises KeyError for one that the protos do not have."""
    if not rpc:
        return ""
    service, _, method = rpc.partition("/")
    files = (openai_pb2, kvstore_pb2, decode_pb2, prefill_pb2, kv_transfer_pb2)
    services = {
        name: found for file in files for name, found in file.DESCRIPTOR.services_by_name.items()
    }
    return str(services[service].methods_by_name[method].name)
