"""The page in a real browser: chat, the mesh live, and how it looks; on one mesh through Envoy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.mesh.altered_worker import OTHER_ARITHMETIC, altered_worker
from tests.mesh.harness import Mesh, option, slowed, until
from tests.mesh.test_freezes import frozen
from tests.page.conftest import MODEL, OpenPage
from tests.support.other_arithmetic import NAME
from tests.support.ports import free_port

pytestmark = pytest.mark.costly

LONG = json.dumps({"ignore_eos": True, "max_tokens": 1800})
WORDS = re.compile(r"\w{2,}")
SHORT = json.dumps({"max_tokens": 4})


def test_an_answer_streams_in_and_is_accounted_for(open_page: OpenPage) -> None:
    look = open_page()
    look.more_fields(json.dumps({"ignore_eos": True, "max_tokens": 600}))
    look.say("What is the capital of France?")
    # Words are there while the answer is still on its way.
    look.page.locator(".message.assistant[aria-busy] > .text").filter(has_text=WORDS).wait_for()
    partial = look.answer
    look.wait_for_answer()
    assert len(look.answer) > len(partial) > 0
    assert look.answer.startswith(partial.rstrip())
    figures = look.page.locator(".figures").last.inner_text()
    assert re.search(r"^length · TTFT [\d.]+ m?s · [\d.]+ tokens/s · \d+ prompt", figures)
    assert "+ 600 answer tokens" in figures


def test_settings_and_the_conversation_so_far_are_sent(open_page: OpenPage) -> None:
    look = open_page()
    page = look.page
    page.locator("#settings > summary").click()
    fields = {
        "System message": "Be kind.", "Temperature": "0.5", "Top p": "0.9", "Top k": "7",
        "Max tokens": "4", "Seed": "11", "Stop strings": "one\ntwo",
        "Further fields": '{"min_tokens": 2}',
    }  # fmt: skip
    for label, value in fields.items():
        page.get_by_label(label).fill(value)
    look.say("Hello")
    look.wait_for_answer()
    first = look.answer
    with page.expect_request("**/v1/chat/completions") as asked:
        look.say("And now?")
    look.wait_for_answer()
    body: Any = asked.value.post_data_json
    messages = body.pop("messages")
    assert body == {
        "model": MODEL, "stream": True, "stream_options": {"include_usage": True},
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 4, "seed": 11,
        "stop": ["one", "two"], "min_tokens": 2,
    }  # fmt: skip
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"].strip() == first.strip()
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".message").count() == 0


def test_thoughts_are_folded_away_from_the_answer(open_page: OpenPage) -> None:
    look = open_page()
    form = {
        "structured_outputs": {"regex": "<think>[A-Z][a-z ]{4,20}[.]</think>[A-Z][a-z]{2,8}[.]"}
    }
    look.more_fields(json.dumps(form))
    look.say("What is the capital of France?")
    look.wait_for_answer()
    assert re.fullmatch(r"[A-Z][a-z]{2,8}\.", look.answer)
    thoughts = look.page.locator("details.thoughts > .text")
    assert not thoughts.is_visible()
    look.page.get_by_text("Thoughts", exact=True).click()
    assert re.fullmatch(r"[A-Z][a-z ]{4,20}\.", thoughts.inner_text())
    # What the model thought is not told to it as if it had said it.
    with look.page.expect_request("**/v1/chat/completions") as asked:
        look.say("And now?")
    body: Any = asked.value.post_data_json
    said = body["messages"][1]
    answer = look.page.locator(".message.assistant > .text").first.inner_text()
    assert (said["role"], said["content"]) == ("assistant", answer)
    look.wait_for_answer()


def test_stop_ends_the_request_on_the_worker(open_page: OpenPage, mesh: Mesh) -> None:
    look = open_page()
    look.more_fields(LONG)
    before = mesh.metric("router", "vllm:request_success_total", finished_reason="abort")
    (engine,) = mesh.parts()["decode-0"].children()
    with slowed(engine):
        look.say("Tell me a very long story.")
        look.page.locator(".message.assistant > .text").filter(has_text=WORDS).wait_for()
        look.page.get_by_role("button", name="Stop").click()
    look.wait_for_answer()
    assert look.page.locator(".figures").last.inner_text().startswith("stopped")
    until(
        lambda: (
            mesh.metric("router", "vllm:request_success_total", finished_reason="abort")
            == before + 1
        ),
        "the router has cancelled it",
    )
    mesh.wait_until_worker_idle("decode-0")
    look.page.locator("#requests tr.abort").first.wait_for()
    assert look.page.locator("#requests tr").first.locator(".end").inner_text() == "left"


def test_the_mesh_is_live_and_says_why_a_request_went_where_it_went(open_page: OpenPage) -> None:
    look = open_page()
    page = look.page
    page.locator("#link[data-state=live]").wait_for()
    cards = page.locator("#workers > li")
    assert sorted(cards.locator("b").all_inner_texts()) == ["decode-0", "prefill-0"]
    assert cards.get_by_role("meter").count() == 4
    assert all("cpu-fma-float32" in text for text in cards.all_inner_texts())
    assert not page.locator("#mixed").is_visible()
    look.more_fields(SHORT)
    look.say("Who are you?")
    look.wait_for_answer()
    page.get_by_role("button", name="Why there?").last.click()
    why = page.locator("tr.why:visible")
    why.wait_for()
    facts = why.inner_text()
    for word in ("Policy kv_aware", "Worker decode-0", "Way", "available", "captured", "delivered"):
        assert word in facts.replace("\n", " ")
    assert "decode load" in why.locator("table.considered").inner_text()
    opener = page.locator("button.open[aria-expanded=true]")
    assert opener.evaluate("node => node === document.activeElement")
    opener.press("Enter")
    assert not why.is_visible()
    assert page.locator("#latency .p50").first.text_content() != "–"


def test_workers_that_compute_otherwise_are_named(open_page: OpenPage, mesh: Mesh) -> None:
    page = open_page().page
    with altered_worker(mesh, "decode-other", OTHER_ARITHMETIC, "--served-model-name", MODEL):
        page.locator("#mixed").wait_for()
        told = page.locator("#mixed").inner_text()
        kinds = f"cpu-fma-float32 (decode-0, prefill-0) and {NAME} (decode-other)."
        assert told.startswith(f"Workers of {MODEL} compute with 2 kinds of arithmetic: {kinds}")
    page.locator("#mixed").wait_for(state="hidden")


def test_names_and_answers_are_text(open_page: OpenPage) -> None:
    evil = '</div><img src=x onerror="window.harmed=2">'
    look = open_page()
    # So that what is asked for is answered, and not thought about.
    form = {"structured_outputs": {"choice": [evil]}, "reasoning_effort": "none"}
    look.more_fields(json.dumps(form))
    look.say(evil)
    look.wait_for_answer()
    page = look.page
    assert look.answer == evil
    assert page.locator(".message.user > .text").inner_text() == evil
    assert page.get_by_label("Model").locator("option").inner_text() == MODEL
    page.locator("#requests td.clip").first.wait_for()
    assert page.locator("#requests td.clip").first.text_content() == MODEL
    # The header's icon alone.
    assert page.locator("img").count() == 1


def test_a_tool_call_can_be_read_and_answered(open_page: OpenPage) -> None:
    look = open_page()
    page = look.page
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"hot": {"type": "boolean"}},
                "required": ["hot"],
                "additionalProperties": False,
            },
        },
    }  # fmt: skip
    fields = {"tools": [tool], "tool_choice": "required", "max_tokens": 100}
    fields |= {"reasoning_effort": "none"}
    look.more_fields(json.dumps(fields))
    look.say("What is the weather like?")
    look.wait_for_answer()
    call = page.locator(".call").first
    assert call.locator("b").inner_text() == "get_weather"
    assert re.fullmatch(r'\{\n  "hot": (true|false)\n\}', call.locator("pre").inner_text())
    look.more_fields(json.dumps({"tools": [tool], "max_tokens": 4}))
    result = page.get_by_label("Result of get_weather")
    result.fill("It is hot.")
    with page.expect_request("**/v1/chat/completions") as asked:
        result.press("Enter")
    look.wait_for_answer()
    body: Any = asked.value.post_data_json
    messages = body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]


CONTRAST = """() => {
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = numbers(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *")]
    .filter((node) => node.checkVisibility() && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
    .map((node) => {
      const [a, b] = [light(numbers(getComputedStyle(node).color)), light(ground(node))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.className || node.tagName, node.textContent.slice(0, 30)];
    })
    .filter(([contrast]) => contrast < 4.5);
}"""

UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea, [tabindex]")]
  .filter((node) => !(node.labels?.length || node.getAttribute("aria-label") || (node.tagName === "BUTTON" && node.textContent.trim())))
  .map((node) => node.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1360])
def test_everything_fits_and_can_be_read(open_page: OpenPage, scheme: Any, width: int) -> None:
    look = open_page(
        color_scheme=scheme,
        viewport={"width": width, "height": 740},
        reduced_motion="reduce",
    )
    page = look.page
    look.more_fields(json.dumps({"max_tokens": 4, "top_p": 3}))
    look.say("A word that is much too long: " + "Donaudampfschifffahrt" * 5)
    # The API's own words.
    refusal = page.locator(".message.error")
    refusal.wait_for()
    assert "top_p" in refusal.inner_text()
    look.more_fields(SHORT)
    page.get_by_role("button", name="Send").click()
    look.wait_for_answer()
    page.get_by_role("button", name="Why there?").click()
    page.locator("tr.why:visible").wait_for()
    page.get_by_text("API key").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate("document.getAnimations().length") == 0
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    first = int(re.findall(r"\d+", shade)[0])
    assert (first < 60) == (scheme == "dark")
    assert 400 in look.refused


def test_a_conversation_is_held_by_the_keyboard_alone(open_page: OpenPage) -> None:
    look = open_page()
    look.more_fields(SHORT)
    box = look.page.get_by_label("Message", exact=True)
    box.focus()
    look.page.keyboard.type("Hello")
    look.page.keyboard.press("Shift+Enter")
    look.page.keyboard.type("you")
    look.page.keyboard.press("Enter")
    look.page.locator(".message.assistant .figures button").wait_for()
    assert look.page.locator(".message.user > .text").inner_text() == "Hello\nyou"
    assert box.evaluate("node => node === document.activeElement")


def test_a_model_that_is_gone_is_told_in_the_apis_words(open_page: OpenPage) -> None:
    look = open_page()
    look.page.get_by_label("Model").evaluate(
        "node => node.append(new Option('gone', 'gone', true, true))"
    )
    look.say("Hello")
    error = look.page.get_by_role("alert").filter(has_text="gone")
    error.wait_for()
    assert "error 404" in error.inner_text()
    # The question is not lost.
    assert look.page.get_by_label("Message", exact=True).input_value() == "Hello"
    assert look.refused == [404]


@pytest.fixture
def locked_url(mesh: Mesh) -> Iterator[str]:
    """A second gateway before the same router, which asks for keys; its address."""
    port = free_port()
    router = f"127.0.0.1:{option(mesh.parts()['router'], '--port')}"
    command = [sys.executable, "-P", "-m", "pagemesh.cli", "gateway", "--routers", router]
    command += ["--port", str(port), "--api-key-required"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(url), "the second gateway answers")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_without_a_key_the_page_opens_and_asks_for_it(locked_url: str, open_page: OpenPage) -> None:
    """Pages are closed before what they are open to: the fixtures end from the last to the first."""
    look = open_page(locked_url)
    page = look.page
    page.get_by_text("No API key was given").first.wait_for()
    field = page.get_by_label("API key", exact=True)
    field.wait_for()
    assert set(look.refused) == {401}
    field.fill("a key")
    field.press("Enter")
    page.locator("#link[data-state=live]").wait_for()
    look.more_fields(SHORT)
    look.say("Hello")
    page.locator(".message.assistant .figures button").wait_for()
    assert page.evaluate("sessionStorage.getItem('pagemesh.key')") == "a key"
    assert page.evaluate("localStorage.length") == 0


def test_a_mesh_without_its_worker_is_told_and_comes_back(open_page: OpenPage, mesh: Mesh) -> None:
    look = open_page()
    page = look.page
    page.locator("#link[data-state=live]").wait_for()
    # Killed, it may be back before anybody is told.
    with frozen(mesh, "decode-0"):
        page.locator("#workers > li").filter(has_text="decode-0").filter(
            has_not_text="unreachable"
        ).wait_for(state="detached")
        # Before, it may still come back in a moment, and who asks is told at the end of a stream that has begun.
        until(lambda: refuses_at_once(mesh), "the worker is not waited for any more")
        look.say("Hello")
        error = page.locator(".message.error")
        error.wait_for()
        assert "error 503" in error.inner_text()
        assert "no decode worker" in error.inner_text()
    page.locator("#workers > li.ready").filter(has_text="decode-0").wait_for()
    look.more_fields(SHORT)
    page.get_by_role("button", name="Send").click()
    page.locator(".message.assistant .figures button").wait_for()
    assert look.refused == [503]


def refuses_at_once(mesh: Mesh) -> bool:
    """Whether a stream is refused by its status."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    return httpx.post(f"{mesh.url}/v1/chat/completions", json=chat, timeout=20).status_code == 503


def test_who_looks_away_costs_nothing(open_page: OpenPage, mesh: Mesh) -> None:
    look = open_page()
    look.page.locator("#link[data-state=live]").wait_for()
    shown = httpx.get(f"{mesh.url}/mesh", timeout=5)
    assert shown.headers["content-type"] == "application/json"
    assert shown.json()["watchers"] == 1
    look.page.goto("about:blank")
    until(
        lambda: httpx.get(f"{mesh.url}/mesh", timeout=5).json()["watchers"] == 0,
        "nobody looks any more",
    )
