// Why a request went where it went.

import { el } from "./dom.js";
import { count, seconds, words } from "./format.js";

export function whyView(request) {
  const facts = [
    ["Request", request.id],
    ["Model", request.model],
    ["Took", seconds(request.seconds)],
    request.prompts > 1 && ["Prompts", `${request.prompts}, shown are ${request.places.length}`],
  ].filter(Boolean);
  const places = request.places.length
    ? request.places.map(placeView)
    : [el("p", { class: "hint" }, "It has not been sent to a worker.")];
  return [list(facts), ...places];
}

function placeView(place) {
  const way = words(place.taken_way ?? place.way);
  const isOther = place.taken_way && place.taken_way !== place.way;
  const facts = [
    ["Policy", place.policy],
    ["Worker", place.retry ? `${place.worker}, after another one was lost` : place.worker],
    ["Way", isOther ? `${way}, though ${words(place.way)} was planned` : way],
    place.prefill && ["Prefill worker", place.prefill],
    place.source && ["Pulled from", place.source],
    place.predicted_seconds != null && ["Predicted", seconds(place.predicted_seconds)],
    place.ready_seconds != null && ["Really", seconds(place.ready_seconds)],
    ["Index", LOOKUPS[place.lookup] ?? place.lookup],
    ["Cached tokens", cachedWords(place)],
  ].filter(Boolean);
  return el("div", { class: "place" }, list(facts), considered(place), refused(place.refused));
}

const LOOKUPS = {
  answered: "answered", failed: "did not answer", skipped: "not asked: it would not have mattered",
};

function cachedWords(place) {
  const delivered = place.delivered_tokens == null ? "…" : count(place.delivered_tokens);
  return `${count(place.available_tokens)} available, ${count(place.captured_tokens)} captured, ${delivered} delivered`;
}

function list(facts) {
  return el("dl", { class: "facts" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), " ", el("dd", {}, value))));
}

/** The workers that could have run it, the chosen one first. */
function considered(place) {
  if (!place.considered.length) return null;
  const names = [...new Set(place.considered.flatMap(({ scores }) => Object.keys(scores ?? {})))];
  const head = ["Considered", "Holds", "Requests", "Predicted", ...names.map(words), "Total"];
  const rows = place.considered.map((each) => [
    each.worker,
    count(each.held_tokens),
    count(each.requests),
    seconds(each.predicted_seconds),
    ...names.map((name) => score(each.scores?.[name])),
    score(each.total),
  ]);
  const cells = (tag, row) => row.map((value, column) => el(tag, column ? { class: "number" } : {}, value));
  const left = place.fit_workers - place.considered.length;
  return el(
    "div",
    // What is wide is moved by itself, also by the arrow keys.
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Considered workers" },
    el(
      "table",
      { class: "considered" },
      el("thead", {}, el("tr", {}, ...cells("th", head))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells("td", row)))),
    ),
    left > 0 && el("p", { class: "hint" }, `and ${left} more that could have run it`),
  );
}

const score = (value) => (value == null ? "–" : value.toFixed(3));

function refused(workers) {
  const found = Object.entries(workers);
  if (!found.length) return null;
  const sentence = found.map(([worker, filter]) => `${worker} (${words(filter)})`).join(", ");
  return el("p", { class: "hint" }, `Passed over: ${sentence}`);
}
