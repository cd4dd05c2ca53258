// What an answer consists of so far, put together from its chunks.

// What came all at once says nothing about speed.
const MIN_SECONDS = 0.02;

export class Answer {
  constructor() {
    this.content = "";
    this.thoughts = "";
    this.calls = new Map(); // by index: {index, id, name, arguments}
    this.finish = null;
    this.usage = null;
    this.startedAt = performance.now();
    this.firstAt = null;
    this.lastAt = null;
  }

  get isEmpty() {
    return !this.content && !this.thoughts && !this.calls.size;
  }

  /** What is new in a chunk, of the first choice. */
  take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices?.find(({ index }) => index === 0);
    if (!choice) return [];
    this.finish = choice.finish_reason ?? this.finish;
    const { content, tool_calls: calls, ...delta } = choice.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning;
    const news = [];
    if (thought) news.push({ thought });
    if (content) news.push({ content });
    for (const [index, call] of (calls ?? []).entries()) news.push({ call: this.addCall(index, call) });
    this.thoughts += thought ?? "";
    this.content += content ?? "";
    if (news.length) {
      this.lastAt = performance.now();
      this.firstAt ??= this.lastAt;
    }
    return news;
  }

  addCall(position, { index = position, id, function: given }) {
    const call = this.calls.get(index) ?? { index, id: "", name: "", arguments: "" };
    call.id ||= id ?? "";
    call.name += given?.name ?? "";
    call.arguments += given?.arguments ?? "";
    this.calls.set(index, call);
    return call;
  }

  /** As the next request has it among its messages; null for nothing. */
  message() {
    if (!this.content && !this.calls.size) return null;
    const calls = [...this.calls.values()].map(({ id, name, arguments: args }) => ({
      id, type: "function", function: { name, arguments: args },
    }));
    return { role: "assistant", content: this.content || null, ...(calls.length && { tool_calls: calls }) };
  }

  figures(end) {
    const tokens = this.usage?.completion_tokens;
    const duration = (this.lastAt - this.firstAt) / 1000;
    return {
      end: end || this.finish,
      ttft: this.firstAt && (this.firstAt - this.startedAt) / 1000,
      speed: tokens > 1 && duration > MIN_SECONDS ? (tokens - 1) / duration : null,
      usage: this.usage,
    };
  }
}
