// What is seen of one message: content, thoughts, tool calls, figures.

import { el } from "./dom.js";
import { count, rate, seconds } from "./format.js";

/** A message that is there as a whole. */
export function messageView(role, text) {
  return el("article", { class: `message ${role}` }, el("h3", { class: "who" }, role), el("div", { class: "text" }, text));
}

/** A sentence of the API, or about it. */
export function errorView(status, sentence) {
  return el(
    "article",
    { class: "message error", role: "alert" },
    el("h3", { class: "who" }, status ? `error ${status}` : "error"),
    el("div", { class: "text" }, sentence),
  );
}

/** An answer that grows. Each piece is appended, so that long answers cost no more than short ones. */
export class AnswerView {
  constructor(name, onWhy) {
    this.content = document.createTextNode("");
    this.text = el("div", { class: "text" }, this.content);
    this.figures = el("p", { class: "figures" });
    this.onWhy = onWhy;
    this.thoughts = null;
    this.calls = new Map();
    this.element = el(
      "article",
      // Read out when it is complete, and not token by token.
      { class: "message assistant", "aria-busy": "true" },
      el("h3", { class: "who" }, name),
      this.text,
      this.figures,
    );
  }

  addContent(piece) {
    this.content.appendData(piece);
  }

  addThought(piece) {
    if (!this.thoughts) {
      this.thoughts = document.createTextNode("");
      this.text.before(
        el("details", { class: "thoughts" }, el("summary", {}, "Thoughts"), el("div", { class: "text" }, this.thoughts)),
      );
    }
    this.thoughts.appendData(piece);
  }

  showCall(call) {
    let shown = this.calls.get(call.index);
    if (!shown) {
      shown = { name: el("b"), args: el("pre") };
      this.calls.set(call.index, shown);
      this.figures.before(el("div", { class: "call" }, el("span", { class: "who" }, "calls "), shown.name, shown.args));
    }
    shown.name.textContent = call.name;
    shown.args.textContent = indented(call.arguments);
  }

  end(figures) {
    this.element.removeAttribute("aria-busy");
    const parts = [
      figures.end,
      figures.ttft != null && `TTFT ${seconds(figures.ttft)}`,
      figures.speed != null && `${rate(figures.speed)} tokens/s`,
      figures.usage && usageWords(figures.usage),
    ].filter(Boolean);
    const why = el("button", { type: "button", class: "why" }, "Why there?");
    why.addEventListener("click", this.onWhy);
    this.figures.replaceChildren(parts.join(" · "), " ", why);
  }
}

function usageWords(usage) {
  const cached = usage.prompt_tokens_details?.cached_tokens;
  const prompt = `${count(usage.prompt_tokens)} prompt`;
  const answer = `${count(usage.completion_tokens)} answer tokens`;
  return cached ? `${prompt} (${count(cached)} cached) + ${answer}` : `${prompt} + ${answer}`;
}

function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    // Still on its way.
    return json;
  }
}
