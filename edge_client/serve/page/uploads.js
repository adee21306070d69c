// Documents into a knowledge base, one after the other, each with its progress.

import * as api from "./api.js";
import { byId, h, memories } from "./dom.js";
import * as service from "./service.js";
import { plain } from "./timeline.js";

let line = Promise.resolve();

/** Make the dialog work. */
export function prepare() {
  const drop = byId("drop");
  byId("u-files").addEventListener("change", (event) => {
    add([...event.target.files]);
    event.target.value = "";
  });
  for (const name of ["dragover", "dragenter"]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    add([...event.dataTransfer.files]);
  });
  // A file dropped beside the place would replace the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
}

export function open() {
  byId("u-base").value = service.chosenBase() || "default";
  byId("upload-dialog").showModal();
}

function add(files) {
  const base = byId("u-base");
  if (!base.reportValidity()) return;
  for (const file of files) {
    const bar = h("progress", { max: 1, "aria-label": `Progress of ${file.name}` });
    const state = h("span", { class: "dim" }, "in line");
    byId("u-list").append(h("li", {}, h("span", { class: "name" }, file.name), state, bar));
    line = line.then(() => send(base.value, file, bar, state));
  }
}

async function send(base, file, bar, state) {
  const begun = performance.now();
  let expected = 0;
  const clock = setInterval(() => {
    const seconds = Math.round((performance.now() - begun) / 1000);
    if (expected) state.textContent = `writing about ${memories(expected)}, ${seconds} s`;
  }, 1000);
  state.textContent = "sending";
  try {
    for await (const step of api.upload(base, file)) {
      if (step.state === "sent") {
        expected = step.references_expected;
        state.textContent = `writing about ${memories(expected)}`;
      } else if (step.state === "writing") {
        bar.value = Math.min(step.references / expected, 0.98);
      } else {
        bar.value = 1;
        state.textContent = `ready: ${memories(step.references)}${step.outcome === "unchanged" ? ", nothing new" : ""}`;
        state.className = "good";
        await service.refresh(base);
      }
    }
  } catch (error) {
    bar.remove();
    state.textContent = plain(error.message);
    state.className = "bad";
  } finally {
    clearInterval(clock);
  }
}
