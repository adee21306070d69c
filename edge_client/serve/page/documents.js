// The documents of a knowledge base: listed, deleted, and added one after the other, each with its progress.

import * as api from "./api.js";
import { button, byId, h, memories, plain, toast } from "./dom.js";
import * as service from "./service.js";

let line = Promise.resolve();

/** Make the dialog work. */
export function prepare() {
  const drop = byId("drop");
  byId("u-base").addEventListener("change", () => list());
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
  list();
}

/** Draw the documents of the knowledge base, from a page on. */
async function list(page = "") {
  const base = byId("u-base").value;
  if (!page) byId("u-documents").replaceChildren();
  const found = await api.documents(base, page).catch(() => ({ data: [], next: "" })); // a new one has none
  const rows = found.data.map((document) => {
    const name = document.title || document.key;
    const row = h("li", {}, h("span", { class: "name", title: document.key }, name), h("span", { class: "dim" }, memories(document.references)),
      button("trash", `Delete ${name}`, async () => {
        if (!confirm(`Delete “${name}” and its memories from ${base}, for everybody who reads it?`)) return;
        await api.remove(base, document.key).then(() => (row.remove(), service.refresh()), (error) => toast(plain(error.message), "error"));
      }));
    return row;
  });
  byId("u-documents").append(...rows);
  byId("u-more").hidden = !found.next;
  byId("u-more").onclick = () => list(found.next);
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
        await list();
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
