// The mesh live: follows its events and shows them.

import { call, payloads } from "./api.js";
import { byId, el, tell } from "./dom.js";
import { count, rate } from "./format.js";
import { CacheView } from "./cache.js";
import { LatencyView } from "./latency.js";
import { RequestTable } from "./requests.js";
import { workerCard } from "./workers.js";

const SILENCE_MS = 10_000;
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 10_000;

export class MeshView {
  constructor({ onUnauthorized, onWorkers }) {
    this.onUnauthorized = onUnauthorized;
    this.onWorkers = onWorkers;
    this.latency = new LatencyView(byId("latency"));
    this.cache = new CacheView(byId("cache"));
    this.requests = new RequestTable(byId("requests"), byId("no-requests"));
    this.link = byId("link");
    this.workers = "";
    this.attempt = null;
  }

  /** Follows the events from now on, over a new connection. */
  connect() {
    this.pause();
    const attempt = new AbortController();
    this.attempt = attempt;
    this.follow(attempt.signal);
  }

  pause() {
    this.attempt?.abort();
    this.attempt = null;
  }

  /** Shows the row of a request, opened. */
  show(id) {
    this.requests.open(id);
  }

  async follow(signal) {
    let delay = FIRST_RETRY_MS;
    while (!signal.aborted) {
      try {
        for await (const snapshot of silenceEnds(signal)) {
          delay = FIRST_RETRY_MS;
          this.take(snapshot);
        }
        this.say("waiting", "reconnecting", "");
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401) this.onUnauthorized();
        const sentence = error.name === "AbortError" ? "The mesh says nothing any more." : error.message;
        this.say("lost", "not connected", sentence);
      }
      await pauseFor(delay * (0.75 + Math.random() / 2), signal);
      delay = Math.min(MAX_RETRY_MS, delay * 2);
    }
  }

  take(snapshot) {
    this.say("live", `live · ${snapshot.router.version}`, "");
    const { queue, window: last, workers } = snapshot;
    const ready = workers.filter(({ state }) => state === "ready").length;
    byId("tiles").replaceChildren(
      ...tile("Workers", `${ready} / ${workers.length}`, ready < workers.length),
      ...tile("Running", count(queue.running)),
      ...tile("Waiting", count(queue.waiting), queue.waiting > 0),
      ...tile("Prompt tok/s", rate(last.prompt_tokens_per_second)),
      ...tile("Answer tok/s", rate(last.output_tokens_per_second)),
    );
    this.latency.take(last);
    this.cache.take(last.cache);
    const told = JSON.stringify(workers.map(({ reported_seconds_ago: _, ...worker }) => worker));
    if (told !== this.workers) {
      this.workers = told;
      byId("workers").replaceChildren(...workers.map(workerCard));
    }
    tell(byId("mixed"), snapshot.mixed_arithmetic.map(({ what }) => what).join(" "));
    this.requests.take(snapshot.router.id, snapshot.requests);
    if (workers.some(({ role, state }) => role === "decode" && state === "ready")) this.onWorkers();
  }

  say(state, words, problem) {
    this.link.dataset.state = state;
    if (this.link.textContent !== words) this.link.textContent = words;
    tell(byId("mesh-problem"), problem);
  }
}

function tile(name, value, isOdd = false) {
  return [el("div", { class: isOdd ? "tile odd" : "tile" }, el("dt", {}, name), el("dd", {}, value))];
}

/** The events of one connection; it is given up when it is silent for long, or `signal` says so. */
async function* silenceEnds(signal) {
  const silence = new AbortController();
  const giveUp = () => silence.abort();
  signal.addEventListener("abort", giveUp);
  let timer = setTimeout(giveUp, SILENCE_MS);
  try {
    for await (const payload of payloads(await call("mesh/events", { signal: silence.signal }))) {
      clearTimeout(timer);
      timer = setTimeout(giveUp, SILENCE_MS);
      yield payload;
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
    signal.removeEventListener("abort", giveUp);
  }
}

function pauseFor(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
