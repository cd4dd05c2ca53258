// Elements from words: everything that comes from outside becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element; `given` has attributes, and "class". Strings among the children become text. */
export function el(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

export function svg(tag, given = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Shows a sentence, or hides the place for it where there is none. */
export function tell(element, sentence) {
  if (element.textContent !== sentence) element.textContent = sentence;
  element.hidden = !sentence;
}

/** A bar that is full to a share in [0, 1], named for those who do not see it. */
export function bar(label, share, kind = "") {
  const full = Math.max(0, Math.min(1, share || 0));
  const inner = el("span");
  inner.style.width = `${(full * 100).toFixed(1)}%`;
  const percent = Math.round(full * 100);
  return el(
    "span",
    {
      class: `meter ${kind}`, role: "meter", "aria-label": label,
      "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": percent,
    },
    inner,
  );
}
