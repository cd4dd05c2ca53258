// A conversation with a model of the mesh.

import { ApiError, call, newRequestId, payloads } from "./api.js";
import { AnswerView, errorView, messageView } from "./answer.js";
import { byId, tell } from "./dom.js";
import { Answer } from "./answer_state.js";
import { readSettings } from "./settings.js";

export class Chat {
  constructor({ model, showRequest, onUnauthorized }) {
    this.model = model;
    this.showRequest = showRequest;
    this.onUnauthorized = onUnauthorized;
    this.messages = [];
    this.unanswered = []; // tool calls that wait for what the tool gives
    this.running = null;
    this.log = byId("log");
    this.input = byId("message");
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.say(this.input.value);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.say(this.input.value);
    });
    byId("stop").addEventListener("click", () => this.running?.abort());
    byId("clear").addEventListener("click", () => this.clear());
    byId("copy").addEventListener("click", () => this.copy());
  }

  async say(text) {
    if (this.running || !text.trim()) return;
    let settings;
    try {
      settings = readSettings();
    } catch (error) {
      this.append(errorView(0, error.message));
      return;
    }
    const asked = this.unanswered.shift();
    const message = asked
      ? { role: "tool", tool_call_id: asked.id, content: text }
      : { role: "user", content: text };
    this.messages.push(message);
    this.append(messageView(asked ? `tool ${asked.name}` : "user", text));
    this.input.value = "";
    this.nameInput();
    if (!this.unanswered.length) await this.answer(settings);
  }

  async answer({ system, fields }) {
    const model = this.model();
    const id = newRequestId();
    const body = {
      model,
      messages: system ? [{ role: "system", content: system }, ...this.messages] : this.messages,
      stream: true,
      stream_options: { include_usage: true },
      ...fields,
    };
    const answer = new Answer();
    const view = new AnswerView(model || "assistant", () => this.showRequest(id));
    this.setRunning(new AbortController());
    const { signal } = this.running;
    let end = "";
    try {
      const response = await call("v1/chat/completions", {
        method: "POST", body, signal, headers: { "x-request-id": id },
      });
      this.append(view.element);
      if (response.headers.get("content-type")?.startsWith("text/event-stream")) {
        for await (const chunk of payloads(response)) this.take(answer, view, chunk);
      } else {
        this.take(answer, view, whole(await response.json()));
      }
    } catch (error) {
      end = error.name === "AbortError" ? "stopped" : "failed";
      if (end === "failed") this.fail(error, answer);
    }
    if (view.element.isConnected) view.end(answer.figures(end));
    this.keep(answer);
    this.setRunning(null);
    this.follow();
  }

  take(answer, view, chunk) {
    if (chunk.error) throw new ApiError(chunk.error.code ?? 0, chunk.error.message ?? String(chunk.error));
    const isAtEnd = this.isAtEnd();
    for (const { content, thought, call: toolCall } of answer.take(chunk)) {
      if (content) view.addContent(content);
      if (thought) view.addThought(thought);
      if (toolCall) view.showCall(toolCall);
    }
    if (isAtEnd) this.follow();
  }

  fail(error, answer) {
    if (error.status === 401) this.onUnauthorized();
    this.append(errorView(error.status, error.message));
    if (answer.isEmpty) {
      // Nothing came of the question: it can be mended and sent again.
      const question = this.messages.pop();
      if (!this.input.value) this.input.value = question.content;
    }
  }

  keep(answer) {
    const message = answer.message();
    if (!message) return;
    this.messages.push(message);
    this.unanswered = [...answer.calls.values()];
    this.nameInput();
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    this.unanswered = [];
    this.log.replaceChildren(byId("empty") ?? this.empty);
    this.nameInput();
    this.input.focus();
  }

  async copy() {
    const text = this.messages.map(({ role, content }) => `${role}: ${content ?? ""}`).join("\n\n");
    const said = byId("said");
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "The conversation was copied.";
    } catch {
      // Without TLS, browsers have no clipboard; what is selected can be copied by hand.
      getSelection().selectAllChildren(this.log);
      said.textContent = "The conversation is selected.";
    }
  }

  append(element) {
    this.empty ??= byId("empty");
    this.empty.remove();
    this.log.append(element);
    this.follow();
  }

  setRunning(controller) {
    this.running = controller;
    byId("send").hidden = Boolean(controller);
    byId("stop").hidden = !controller;
    // The button that had the focus is gone.
    if (document.activeElement === document.body) (controller ? byId("stop") : this.input).focus();
  }

  nameInput() {
    const [asked] = this.unanswered;
    const name = asked ? `Result of ${asked.name}` : "Message";
    tell(byId("message-label"), name);
    this.input.placeholder = name;
  }

  isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
  }

  follow() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}

/** An answer in one piece, as the chunk that would have had all of it. */
function whole(completion) {
  const choices = completion.choices.map(({ message, ...choice }) => ({ ...choice, delta: message }));
  return { ...completion, choices };
}
