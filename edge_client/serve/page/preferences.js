// Settings: what the reader chose, kept in this browser.

import { byId } from "./dom.js";
import * as settings from "./settings.js";

const NUMBERS = ["temperature", "max_tokens"];

/** Make the dialog work. told, tell: get and set what the model is told first in this chat; closed: called after it closes. */
export function prepare({ told, tell, closed }) {
  const form = byId("settings-dialog").querySelector("form");
  const fields = [...form.elements].filter((field) => field.name);
  const draw = () => {
    const chosen = settings.chosen();
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
      settings.choose({ [field.name]: NUMBERS.includes(field.name) ? Number(field.value) : field.value });
    });
  }
  byId("settings-dialog").addEventListener("close", closed);
  byId("settings").addEventListener("click", () => {
    draw();
    byId("settings-dialog").showModal();
  });
  for (const name of ["compare", "only_documents", "shortcuts"]) {
    byId(name).checked = settings.chosen()[name];
    byId(name).addEventListener("change", () => settings.choose({ [name]: byId(name).checked }));
  }
}

function output(field) {
  const shown = byId("settings-dialog").querySelector(`output[for="${field.id}"]`);
  if (shown) shown.textContent = field.value;
}
