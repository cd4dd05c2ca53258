// TTFT and ITL: two figures each, and how they went while the page was open.

import { el, svg } from "./dom.js";
import { count, seconds } from "./format.js";

const MAX_POINTS = 60;
const WIDTH = 240;
const HEIGHT = 36;

export class LatencyView {
  constructor(element) {
    this.series = { ttft: [], itl: [] };
    this.element = element;
  }

  take(last) {
    const rows = [["ttft", "TTFT", "time to first token"], ["itl", "ITL", "between two tokens"]];
    this.element.replaceChildren(
      ...rows.map(([name, short, long]) => {
        const points = this.series[name];
        points.push(last[name]);
        if (points.length > MAX_POINTS) points.shift();
        return row(short, long, last[name], points);
      }),
    );
  }
}

function row(short, long, now, points) {
  return el(
    "div",
    { class: "latency" },
    el("span", { class: "name" }, el("b", {}, short), el("small", {}, long)),
    sparkline(points),
    el(
      "span",
      { class: "values", title: `${count(now.count)} observations` },
      el("span", { class: "p50" }, seconds(now.p50)),
      el("span", { class: "p90" }, seconds(now.p90)),
    ),
  );
}

/** Two lines by hand: p90 faint, p50 strong; gaps where nothing was measured. */
export function sparkline(points) {
  const most = Math.max(1e-9, ...points.map(({ p90 }) => p90 ?? 0));
  const shape = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "spark", "aria-hidden": "true",
  });
  for (const name of ["p90", "p50"]) shape.append(svg("path", { class: name, d: path(points, name, most) }));
  return shape;
}

function path(points, name, most) {
  const step = WIDTH / (MAX_POINTS - 1);
  const first = MAX_POINTS - points.length;
  let isOpen = false;
  const moves = points.map((point, index) => {
    const value = point[name];
    if (value == null) {
      isOpen = false;
      return "";
    }
    const x = ((first + index) * step).toFixed(1);
    const y = (HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1);
    const move = `${isOpen ? "L" : "M"}${x} ${y}`;
    // A single point is drawn as a dot by round caps.
    const dot = isOpen ? "" : "h0.01";
    isOpen = true;
    return move + dot;
  });
  return moves.join("");
}
