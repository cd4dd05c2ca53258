"""The requests of a run, one after the other, and what each of them left in the mesh's telemetry.

Each has a fixed id, prompt and seed. Which worker takes it is up to the mesh, in all else two runs are to be equal; what
is not is in `left_out`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx

from scripts.run_dump.left_out import Entry
from scripts.run_dump.mesh import DEADLINE_S, DECODERS, MODEL, DumpedMesh
from scripts.run_dump.readings import (
    count_entries,
    counts,
    family_entries,
    flat,
    gauge_entries,
    log_entries,
    trace_entries,
)
from tests.mesh.harness import until

NUM_WARM_UP: Final = 8
"""Requests before what is dumped: they import what is imported late, and let both decode workers be measured."""
NUM_READ: Final = 8
"""Lines of an answer that have come before its client leaves, or its worker dies."""

_CALLER: Final = "b7ad6b7169203331"
"""The span of the client, which no collector has."""
_STORY: Final = "Tell me a long story about {0}, a river and the town behind it. " * 4
_QUESTION: Final = [20 + 7 * number for number in range(12)]
_FOLLOWING: Final = [30 + 11 * number for number in range(60)]
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


class Run:
    """Requests to a mesh, and the entries that they made."""

    def __init__(self, dumped: DumpedMesh) -> None:
        self.dumped = dumped
        self.traces: dict[str, str] = {}
        """Trace ids by the requests' names."""
        self.entries: list[Entry] = []
        self._counts = counts(dumped.pages())

    def ask(self, name: str, path: str, **body: Any) -> Any:
        """A whole answer, or all of a stream; what the client was told is dumped too."""
        with self._request(name) as headers:
            response = httpx.post(
                f"{self.dumped.mesh.url}{path}",
                json={"model": MODEL, **body},
                headers=headers,
                timeout=DEADLINE_S,
            )
            streams = body.get("stream")
            answer = joined(response.text.splitlines()) if streams else response.json()
            self._note(name, response.status_code, answer)
        return answer

    @contextmanager
    def stream(self, name: str, **body: Any) -> Iterator[Callable[[], None]]:
        """A long completion to which something happens when some of it has come; a function that reads the rest."""
        url = f"{self.dumped.mesh.url}{COMPLETIONS}"
        body = {"model": MODEL, "stream": True, "temperature": 0, "ignore_eos": True, **body}
        with (
            self._request(name) as headers,
            httpx.stream("POST", url, json=body, headers=headers, timeout=DEADLINE_S) as response,
        ):
            lines = response.iter_lines()
            read = [next(lines) for _ in range(NUM_READ)]
            yield lambda: self._note(name, response.status_code, joined([*read, *lines]))

    def has_span(self, name: str, what: str) -> bool:
        """Whether a span of a request has come."""
        return any(span.name == what for span in self.dumped.spans(self.traces[name]))

    def _note(self, name: str, status: int, answer: object) -> None:
        self.entries += flat(f"answers/{name}", {"status": status, "body": answer})

    @contextmanager
    def _request(self, name: str) -> Iterator[Mapping[str, str]]:
        """Headers of one; all that is counted until nothing of it is left to do is its own."""
        trace_id = self.traces[name] = name.encode().hex().ljust(32, "0")[:32]
        yield {"traceparent": f"00-{trace_id}-{_CALLER}-01", "x-request-id": name}
        before, self._counts = self._counts, counts(self.dumped.pages())
        self.entries += count_entries(name, before, self._counts)


def joined(lines: Iterable[str]) -> dict[str, object]:
    """The text of a stream and what ends it, however its tokens came together in chunks."""
    told = [line.removeprefix("data: ") for line in lines if line]
    chunks = [json.loads(line) for line in told[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    pieces = [
        choice["text"] if "text" in choice else choice["delta"].get("content") for choice in choices
    ]
    finish = choices[-1]["finish_reason"]
    text = "".join(piece or "" for piece in pieces)
    return {
        "text": text,
        "finish_reason": finish,
        "usage": chunks[-1].get("usage"),
        "end": told[-1],
    }


def run(dumped: DumpedMesh) -> list[Entry]:
    """Ask everything, and tell what the mesh told of it."""
    _warm_up(Run(dumped))
    run = Run(dumped)
    _ask_in_all_ways(run)
    _ask_wrongly(run)
    _ask_on(run)
    run.entries += gauge_entries(dumped.pages())
    _leave(run)
    _kill(run)
    run.entries += family_entries(dumped.pages())
    dumped.wait_for_spans(tuple(run.traces.values()))
    for name, trace_id in run.traces.items():
        run.entries += trace_entries(name, dumped.spans(trace_id))
    run.entries += log_entries(dumped.logs(), tuple(run.traces))
    return run.entries


def _warm_up(run: Run) -> None:
    for number in range(NUM_WARM_UP):
        prompt = _STORY.format(f"day {number}")
        run.ask(f"warm-up-{number}", COMPLETIONS, prompt=prompt, max_tokens=20, temperature=0)
    mesh = run.dumped.mesh
    idle = [name for name in DECODERS if not mesh.metric(name, "vllm:prompt_tokens_total")]
    if idle:
        raise RuntimeError(f"{' and '.join(idle)} took none of {NUM_WARM_UP} requests")
    if not mesh.metric("router", "pagemesh:kv_path_predicted_seconds_count"):
        raise RuntimeError("the router predicts nothing yet")


def _ask_in_all_ways(run: Run) -> None:
    chat = [{"role": "user", "content": _STORY.format("zebras")}]
    told = {"include_usage": True}
    run.ask(
        "chat-streamed",
        CHAT,
        messages=chat,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options=told,
    )
    other = [{"role": "user", "content": _STORY.format("otters")}]
    run.ask("chat-whole", CHAT, messages=other, max_tokens=24, temperature=0.8, seed=5)
    run.ask("prefix-hit", CHAT, messages=chat, max_tokens=24, temperature=0)
    run.ask(
        "choices",
        COMPLETIONS,
        prompt=_STORY.format("cats"),
        max_tokens=12,
        temperature=1,
        seed=3,
        n=2,
        logprobs=2,
    )
    run.ask("embedding", "/v1/embeddings", input=_STORY.format("bees"))


def _ask_wrongly(run: Run) -> None:
    run.ask("refused", COMPLETIONS, prompt="a", temperature=99)
    run.ask("unknown-model", COMPLETIONS, model="nobody", prompt="a")


def _ask_on(run: Run) -> None:
    """A long answer, and the next turn, for which a worker pulls the KV of that answer from another."""
    fixed = {"temperature": 0.8, "seed": 5, "ignore_eos": True}
    answer = run.ask(
        "answer", COMPLETIONS, prompt=_QUESTION, max_tokens=300, return_token_ids=True, **fixed
    )
    prompt = [*_QUESTION, *answer["choices"][0]["token_ids"], *_FOLLOWING]
    run.ask("pull", COMPLETIONS, prompt=prompt, max_tokens=24, **fixed)


def _leave(run: Run) -> None:
    with run.stream("cancelled", prompt=_STORY.format("dogs"), max_tokens=1500):
        pass


def _kill(run: Run) -> None:
    """SIGKILL for the worker in mid-answer."""
    dumped = run.dumped
    with run.stream("killed", prompt=_STORY.format("ants"), max_tokens=1900) as read_on:
        worker = until(lambda: _busy(dumped), "a worker runs the request")
        # What that worker has ended is sent by then.
        until(lambda: run.has_span("killed", "remote_prefill"), "the worker sends a span")
        wait_until_back = dumped.mesh.kill(worker)
        read_on()
        wait_until_back()
        dumped.wait_until_complete()


def _busy(dumped: DumpedMesh) -> str:
    return next((name for name in DECODERS if dumped.mesh.num_used_blocks(name)), "")
