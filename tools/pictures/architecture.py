"""The processes and who calls whom: arrows come from the table of who may call what."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from pagemesh.identity.roles import CALLERS, MeshRole
from tools.pictures.svg import Drawing

# Who serves a service. `Process` and `Peers` are how processes are looked at: they are no way of a request.
_SERVED_BY: Final = {
    "KvStore": ("kvstore",),
    "Decode": ("decode",),
    "Prefill": ("prefill",),
    "KvTransfer": ("prefill", "decode"),
    "Anthropic": ("router",),
    "Console": ("router",),
    "Inference": ("router",),
    "OpenAI": ("router",),
}
_ASIDE: Final = {"Process", "Peers"}
_PLACES: Final = {
    "client": (20, 190, 120, 70),
    "gateway": (220, 190, 130, 70),
    "router": (455, 190, 175, 70),
    "decode": (800, 60, 200, 76),
    "prefill": (800, 330, 200, 76),
    "kvstore": (450, 400, 190, 70),
}
_LINES: Final = {
    "client": ("openai, curl,", "pagemesh.client"),
    "gateway": ("Envoy: HTTP,", "TLS, limits"),
    "router": ("text ↔ tokens, queue,", "where to, by which way"),
    "decode": ("paged KV, continuous", "batches, sampling"),
    "prefill": ("prompts in chunks,", "the first token"),
    "kvstore": ("who holds which block,", "who is there"),
}
_COLOURS: Final = {
    "client": "plain", "gateway": "plain", "router": "blue", "decode": "green", "prefill": "amber",
    "kvstore": "violet",
}  # fmt: skip


def calls() -> dict[tuple[str, str], list[str]]:
    """The methods, or services, by (caller, callee), from the table that the processes themselves obey.

    Raises KeyError for a service that has no place in this picture.
    """
    found = defaultdict[tuple[str, str], list[str]](list)
    for name, roles in CALLERS.items():
        service, _, method = name.removeprefix("pagemesh.v1.").partition("/")
        if service in _ASIDE:
            continue
        for callee in _SERVED_BY[service]:
            for role in sorted(roles):
                callers = ("prefill", "decode") if role is MeshRole.WORKER else (role.value,)
                for caller in callers:
                    found[caller, callee].append(method or service)
    return dict(found)


def draw() -> str:
    """The picture."""
    known = calls()
    drawing = Drawing(1040, 490, "The processes of a mesh, and the calls between them")
    _arrows(drawing, known)
    for name, (x, y, width, height) in _PLACES.items():
        drawing.titled_box(x, y, width, height, name, *_LINES[name], colour=_COLOURS[name])
    return drawing.text()


def _arrows(drawing: Drawing, known: dict[tuple[str, str], list[str]]) -> None:
    label = {pair: ", ".join(methods) for pair, methods in known.items()}
    drawing.line((140, 225), (220, 225), colour="accent")
    drawing.words(180, 216, "HTTP", anchor="middle", size=12.5)
    drawing.line((350, 225), (455, 225), colour="accent")
    for number, service in enumerate(known["gateway", "router"]):
        drawing.words(402, 250 + 16 * number, service, anchor="middle", size=12)
    drawing.line((80, 260), (80, 345), (500, 345), (500, 260))
    drawing.words(
        240,
        337,
        "gRPC, without a gateway: " + known["client", "router"][2],
        anchor="middle",
        size=12.5,
    )
    drawing.line((630, 205), (800, 105), colour="accent", both=True)
    drawing.words(650, 118, label["router", "decode"], anchor="middle", bold=True)
    drawing.words(650, 135, "tokens of all requests", anchor="middle", size=12, colour="soft")
    drawing.line((850, 136), (850, 330), colour="accent")
    drawing.words(842, 206, label["decode", "prefill"].split(", ")[0], anchor="end", bold=True)
    drawing.words(842, 222, "compute this", anchor="end", size=12, colour="soft")
    drawing.line((900, 330), (900, 136), colour="accent", dashed=True)
    drawing.words(908, 252, "KV blocks,", size=12.5)
    drawing.words(908, 268, "first token", size=12.5)
    drawing.line((1000, 98), (1022, 98), (1022, 368), (1000, 368), both=True)
    drawing.words(
        1016,
        314,
        ", ".join(sorted(set(known["decode", "decode"]))),
        anchor="end",
        bold=True,
        halo=True,
    )
    drawing.line((545, 260), (545, 400))
    drawing.words(
        553, 306, label["router", "kvstore"].replace(", Snapshot", ""), size=12.5, halo=True
    )
    drawing.words(553, 322, "who holds this prompt?", size=12, colour="soft", halo=True)
    drawing.line((800, 385), (640, 425))
    drawing.line((800, 125), (740, 180), (740, 392), (640, 412))
    drawing.words(726, 450, label["prefill", "kvstore"], anchor="middle", size=12.5)
    drawing.words(726, 466, "blocks, load", anchor="middle", size=12, colour="soft")
