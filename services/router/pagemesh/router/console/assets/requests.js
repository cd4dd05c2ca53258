// The latest requests as a table; each row opens to the reasons of its decision.

import { el } from "./dom.js";
import { clock, count, seconds, words } from "./format.js";
import { whyView } from "./why.js";

const MAX_ROWS = 50;

export class RequestTable {
  constructor(body, empty) {
    this.body = body;
    this.empty = empty;
    this.router = "";
    this.rows = new Map(); // by number
    this.wanted = null;
  }

  /** Takes over what is new; numbers mean something only at one router. */
  take(router, requests) {
    if (router !== this.router) {
      this.router = router;
      this.rows.clear();
      this.body.replaceChildren();
    }
    for (const request of requests) this.update(request);
    const oldest = [...this.rows.keys()].sort((a, b) => a - b).slice(0, -MAX_ROWS);
    for (const number of oldest) {
      this.rows.get(number).remove();
      this.rows.delete(number);
    }
    this.empty.hidden = this.rows.size > 0;
    if (this.wanted) this.open(this.wanted);
  }

  update(request) {
    let row = this.rows.get(request.number);
    if (!row) {
      row = new Row(request.number);
      this.rows.set(request.number, row);
      this.body.prepend(row.head, row.tail);
    }
    row.update(request);
  }

  /** Opens the row of a request and goes there; later, when it has not come yet. */
  open(id) {
    const row = [...this.rows.values()].find(({ request }) => request.id === id);
    this.wanted = row ? null : id;
    if (!row) return;
    row.toggle(true);
    row.head.scrollIntoView({ block: "nearest" });
    row.button.focus({ preventScroll: true });
  }
}

class Row {
  constructor(number) {
    const id = `why-${number}`;
    this.button = el("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": id });
    this.button.addEventListener("click", () => this.toggle(this.tail.hidden));
    this.head = el("tr", {}, el("td", {}, this.button));
    this.why = el("td", { colspan: 8 });
    this.tail = el("tr", { id, class: "why", hidden: true }, this.why);
  }

  update(request) {
    this.request = request;
    this.button.textContent = clock(request.began_at);
    this.head.className = request.end ?? "running";
    const place = request.places.at(-1);
    const cached = request.cached_tokens ? ` (${count(request.cached_tokens)})` : "";
    const tokens = `${count(request.prompt_tokens)}${cached} + ${count(request.output_tokens)}`;
    const cell = (kind, text) => el("td", { class: kind }, text);
    // The button stays where it is: it may have the focus.
    while (this.head.children.length > 1) this.head.lastChild.remove();
    this.head.append(
      cell("roomy clip", request.model),
      cell("", place ? words(place.taken_way ?? place.way) : "–"),
      cell("roomy", place ? workersOf(place) : "–"),
      cell("number", tokens),
      cell("number", seconds(request.time_to_first_token)),
      cell("number roomy", seconds(request.seconds)),
      cell("end", endOf(request)),
    );
    if (!this.tail.hidden) this.showWhy();
  }

  toggle(isOpen) {
    this.tail.hidden = !isOpen;
    this.button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) this.showWhy();
  }

  showWhy() {
    this.why.replaceChildren(...whyView(this.request));
  }

  remove() {
    this.head.remove();
    this.tail.remove();
  }
}

function workersOf(place) {
  const others = [place.prefill, place.source].filter(Boolean);
  return others.length ? `${others.join(", ")} → ${place.worker}` : place.worker;
}

function endOf({ end, error, kind }) {
  if (!end) return "runs";
  if (end === "error" && error) return words(error.toLowerCase());
  if (end === "abort") return "left";
  return kind === "embed" && end === "stop" ? "embedded" : end;
}
