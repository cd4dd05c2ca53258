// Numbers as people read them.

export function seconds(value) {
  if (value == null) return "–";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return `${Math.round(value / 60)} min`;
}

export function count(value) {
  if (value == null) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return String(Math.round(value));
}

export function rate(value) {
  if (value == null) return "–";
  return value < 10 ? value.toFixed(1) : count(value);
}

export function percent(share) {
  return `${Math.round((share || 0) * 100)} %`;
}

/** Unix time as the clock on the wall. */
export function clock(unix) {
  const [hours, minutes, secs] = ["getHours", "getMinutes", "getSeconds"].map(
    (part) => String(new Date(unix * 1000)[part]()).padStart(2, "0"),
  );
  return `${hours}:${minutes}:${secs}`;
}

/** remote_pull → "remote pull". */
export const words = (name) => String(name).replaceAll("_", " ");
