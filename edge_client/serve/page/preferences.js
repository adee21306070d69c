// Settings: what the reader chose, kept in this browser.

import { byId } from "./dom.js";
import * as store from "./store.js";

const NUMBERS = ["temperature", "max_tokens"];

/** Make the dialog work. told, tell: get and set what the model is told first in this chat. */
export function prepare({ told, tell }) {
  const form = byId("settings-dialog").querySelector("form");
  const fields = [...form.elements].filter((field) => field.name);
  const draw = () => {
    const chosen = store.settings();
    for (const field of fields) {
      field.value = chosen[field.name];
      output(field);
    }
    byId("s-system").value = told();
  };
  byId("s-system").addEventListener("input", () => tell(byId("s-system").value));
  for (const field of fields) {
    field.addEventListener("input", () => {
      output(field);
      if (!field.checkValidity() || (NUMBERS.includes(field.name) && field.value === "")) return;
      store.setSettings({ [field.name]: NUMBERS.includes(field.name) ? Number(field.value) : field.value });
    });
  }
  byId("settings").addEventListener("click", () => {
    draw();
    byId("settings-dialog").showModal();
  });
  for (const name of ["compare", "only_documents", "shortcuts"]) {
    byId(name).checked = store.settings()[name];
    byId(name).addEventListener("change", () => store.setSettings({ [name]: byId(name).checked }));
  }
}

function output(field) {
  const shown = byId("settings-dialog").querySelector(`output[for="${field.id}"]`);
  if (shown) shown.textContent = field.value;
}
