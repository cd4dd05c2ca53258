// A worker as a card.

import { bar, el } from "./dom.js";
import { count, rate } from "./format.js";

export function workerCard(worker) {
  const load = worker.max_num_seqs ? (worker.running + worker.waiting) / worker.max_num_seqs : 0;
  const used = worker.blocks ? worker.used_blocks / worker.blocks : 0;
  const waiting = worker.waiting ? `, ${worker.waiting} waiting` : "";
  return el(
    "li",
    { class: `worker ${worker.state}`, "data-worker": worker.id },
    el(
      "div",
      { class: "head" },
      el("b", {}, worker.id),
      el("span", { class: `badge ${worker.role}` }, worker.role),
      worker.state !== "ready" && el("span", { class: "badge alarm" }, worker.state),
      worker.degraded && el("span", { class: "badge alarm" }, `degraded: ${worker.degraded.reason}`),
    ),
    el("p", { class: "sub" }, [worker.model, worker.address, worker.arithmetic].filter(Boolean).join(" · ")),
    line("Load", load, "load", `${worker.running} of ${worker.max_num_seqs}${waiting}`),
    line("KV", used, "kv", `${count(worker.used_blocks)} of ${count(worker.blocks)} blocks`),
    el("p", { class: "sub" }, speed(worker)),
    worker.degraded && el("p", { class: "advice" }, worker.degraded.advice),
  );
}

function line(name, share, kind, words) {
  const level = share > 0.9 ? `${kind} high` : kind;
  return el(
    "div",
    { class: "step" },
    el("span", { class: "name" }, name),
    bar(`${name}: ${words}`, share, level),
    el("span", { class: "value" }, words),
  );
}

function speed(worker) {
  const known = worker.prefill_tokens_per_second;
  const words = known == null ? "prefill not measured yet" : `prefill ${rate(known)} tokens/s`;
  const pending = worker.pending_prefill_tokens;
  return pending ? `${words}, ${count(pending)} to compute` : words;
}
