// The choice of a model.

import { call } from "./api.js";
import { byId, el, tell } from "./dom.js";

const RETRY_MS = 2000;

export class ModelPicker {
  constructor(onUnauthorized) {
    this.select = byId("model");
    this.problem = byId("models-problem");
    this.onUnauthorized = onUnauthorized;
    this.loadedAt = 0;
  }

  get chosen() {
    return this.select.value;
  }

  async load() {
    this.loadedAt = performance.now();
    try {
      const { data } = await (await call("v1/models")).json();
      const before = this.chosen;
      this.select.replaceChildren(...data.map(({ id }) => el("option", { value: id }, id)));
      if (data.some(({ id }) => id === before)) this.select.value = before;
      this.select.disabled = !data.length;
      tell(this.problem, data.length ? "" : "The mesh serves no model.");
    } catch (error) {
      tell(this.problem, error.message);
      if (error.status === 401) this.onUnauthorized();
    }
  }

  /** Asks once more where the last answer had no model. */
  retry() {
    if (this.problem.hidden || performance.now() - this.loadedAt < RETRY_MS) return;
    this.load();
  }
}
