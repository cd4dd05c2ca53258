// Puts the page together.

import { key } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { MeshView } from "./mesh.js";
import { ModelPicker } from "./models.js";

const askForKey = () => {
  byId("key-box").open = true;
};

const models = new ModelPicker(askForKey);
const mesh = new MeshView({
  onUnauthorized: askForKey,
  // A mesh that had no worker has got one.
  onWorkers: () => models.retry(),
});
new Chat({ model: () => models.chosen, showRequest: (id) => mesh.show(id), onUnauthorized: askForKey });

const input = byId("key");
input.value = key.get();
input.addEventListener("change", () => {
  key.set(input.value.trim());
  models.load();
  mesh.connect();
});

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  input.blur(); // which tells of the change
  byId("key-box").open = false;
});

models.load();
mesh.connect();
// A page that nobody looks at costs the mesh nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? mesh.pause() : mesh.connect()));
