// How much of the prompts some cache held, how much the chosen way reached, and how much came of it.

import { bar, el } from "./dom.js";
import { count, percent } from "./format.js";

const STEPS = [
  ["available", "Available", "some worker was known to hold them"],
  ["captured", "Captured", "a worker on the chosen way was"],
  ["delivered", "Delivered", "nobody had to compute them"],
];

export class CacheView {
  constructor(element) {
    this.element = element;
  }

  take(cache) {
    const rows = STEPS.map(([name, title, meaning]) => {
      const share = cache.queried ? cache[name] / cache.queried : 0;
      return el(
        "div",
        { class: "step" },
        el("span", { class: "name", title: meaning }, title),
        bar(`${title}: ${meaning}`, share, name),
        el("span", { class: "value" }, cache.queried ? percent(share) : "–"),
      );
    });
    this.element.replaceChildren(...rows, el("p", { class: "hint" }, words(cache)));
  }
}

function words(cache) {
  const asked = `of ${count(cache.queried)} prompt tokens that the index was asked for`;
  if (!cache.unasked) return asked;
  return `${asked}; of ${count(cache.unasked)} others, ${count(cache.unasked_delivered)} came out of a cache`;
}
