// What a request asks for besides its messages.

import { byId } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

/** The fields that were filled in; raises Error, naming what is no JSON. */
export function readSettings() {
  const form = byId("settings-form");
  const value = (name) => form.elements[name].value;
  const fields = {};
  for (const name of NUMBERS) {
    const input = form.elements[name];
    // What the API would refuse is sent all the same: it says best what is wrong.
    if (input.validity.badInput) throw new Error(`${name} is not a number.`);
    if (input.value !== "") fields[name] = Number(input.value);
  }
  const stop = value("stop").split("\n").filter((line) => line !== "");
  if (stop.length) fields.stop = stop;
  return { system: value("system").trim(), fields: { ...fields, ...readMore(value("more")) } };
}

function readMore(text) {
  if (!text.trim()) return {};
  let more;
  try {
    more = JSON.parse(text);
  } catch (error) {
    throw new Error(`The further fields are not JSON: ${error.message}`);
  }
  if (more === null || typeof more !== "object" || Array.isArray(more)) {
    throw new Error("The further fields are not a JSON object.");
  }
  return more;
}
