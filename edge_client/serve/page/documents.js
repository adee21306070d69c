// The documents of this device, added one after the other, corrected and deleted, and those of the chosen knowledge base.

import * as api from "./api.js";
import { button, byId, h, memories, plain, redraw, toast } from "./dom.js";
import * as service from "./service.js";
import { locale, t } from "./words.js";

let line = Promise.resolve();
let unread = 0;
let sending = ""; // the file that is being written
let ask = () => {};
const opened = new Set(); // documents whose memories are shown
let rows = new Map(); // by all that they show: what is typed in one stays while others change

/** How many added files are not read yet. */
export const waiting = () => unread;

/** Make the dialog work, and dropping and pasting files anywhere. askAbout: called with a document to ask about. */
export function prepare(askAbout) {
  ask = askAbout;
  byId("u-files").addEventListener("change", (event) => {
    add([...event.target.files]);
    event.target.value = "";
  });
  window.addEventListener("beforeunload", (event) => unread && event.preventDefault());
  window.addEventListener("dragover", (event) => hasFiles(event.dataTransfer) && event.preventDefault());
  window.addEventListener("drop", (event) => hasFiles(event.dataTransfer) && take(event, event.dataTransfer));
  window.addEventListener("paste", (event) => { // a table that was copied brings its picture along, and is text
    if (hasFiles(event.clipboardData) && !event.clipboardData.types.includes("text/plain")) take(event, event.clipboardData);
  });
}

/** Whether what is dragged or pasted is files; text goes where the browser puts it. */
const hasFiles = (transfer) => Boolean(transfer?.types.includes("Files"));

/** Add the files of an event. */
function take(event, { files }) {
  event.preventDefault();
  if (files.length) open();
  add([...files]);
}

export function open() {
  if (!byId("upload-dialog").open) byId("upload-dialog").showModal();
  local();
  byId("u-documents").replaceChildren();
  shared();
}

const row = ({ source, key, references }, ...more) =>
  h("li", {}, h("span", { class: "name", title: key }, source), h("span", { class: "dim" }, memories(references)), more);

async function local() {
  const files = new Map();
  for (const document of await service.remembered()) {
    const file = JSON.stringify([document.knowledge_base, document.file]);
    files.set(file, [...(files.get(file) ?? []), document]);
  }
  const drawn = new Map();
  for (const parts of files.values()) {
    const shows = JSON.stringify([parts, parts.some((part) => part.key === sending)]);
    drawn.set(shows, rows.get(shows) ?? (parts.length > 1 ? localRow(fileOf(parts), parts) : localRow(parts[0])));
  }
  rows = drawn;
  redraw(byId("u-local"), ...rows.values());
}

const sum = (numbers) => numbers.reduce((one, other) => one + other, 0);

/** The file that these pages or rows are of, as a document. */
const fileOf = (parts) => ({
  ...parts[0],
  key: parts[0].file,
  source: parts[0].file.split(/[\\/]/).pop(),
  references: sum(parts.map((part) => part.references)),
  whole: sum(parts.map((part) => part.whole)),
  written_at: Math.max(...parts.map((part) => part.written_at)),
});

/** A document, which opens to its memories, or a file, which opens to its pages or rows. */
function localRow(document, parts = null) {
  const { knowledge_base, key, source, references, whole, written_at } = document;
  const inside = h("ul", { class: parts ? "parts" : "pieces" });
  const date = new Date(1000 * written_at).toLocaleDateString(locale, { dateStyle: "medium" });
  const draw = () => (parts ? redraw(inside, ...parts.filter((part) => part.references).map((part) => localRow(part))) : api.memoriesOf(document).then(
    (all) => redraw(inside, ...all.map((memory) => piece(document, memory, draw))),
    (error) => toast(plain(error.message), "error")));
  const broken = references < whole && key !== sending ? h("span", { class: "warn" }, ` ${t`not complete: give the file again`}`) : null;
  const row = h("details", {
    open: opened.has(key),
    ontoggle: () => {
      if (row.open && !inside.children.length) draw();
      row.open ? opened.add(key) : opened.delete(key);
    },
  }, h("summary", {}, h("span", { class: "name", title: key }, source), h("span", { class: "dim" }, `${memories(references)}, ${date}`), broken), inside);
  return h("li", { class: "document" }, row,
    button("ask", t`Ask about ${source}`, () => ask({ key: `${knowledge_base}: ${key}`, source })),
    button("trash", t`Delete ${source}`, async () => {
      if (!confirm(t`Delete “${source}” and its memories from this device?`)) return;
      await api.forget(document).then(local, (error) => toast(plain(error.message), "error"));
    }));
}

/** One memory of a document: its text, to be corrected or deleted. drawn: draws all of them anew. */
function piece(document, { chunk_number, text }, drawn) {
  const save = async (value) => {
    try {
      await api.correct(document, chunk_number, value);
      if (value) drawn();
      else local();
    } catch (error) {
      toast(plain(error.message), "error");
    }
  };
  const field = h("textarea", { rows: 4, "aria-label": t`Text of the memory` });
  const form = h("div", { class: "edit", hidden: true }, field, h("div", { class: "buttons" },
    h("button", { type: "button", onclick: () => { form.hidden = true; } }, t`Cancel`),
    h("button", { type: "button", class: "primary", onclick: () => field.value.trim() && save(field.value) }, t`Save`)));
  return h("li", {}, h("p", {}, text),
    h("div", { class: "tools" },
      button("pen", t`Correct this memory`, () => {
        field.value = text;
        form.hidden = false;
        field.focus();
      }),
      button("trash", t`Delete this memory`, () => confirm(t`Delete this memory? The rest of the document stays.`) && save(""))),
    form);
}

/** The knowledge base's documents, from a page on. */
async function shared(page = "") {
  const found = await api.documents(service.chosenBase(), page).catch(() => ({ data: [], next: "" }));
  byId("u-documents").append(...found.data.map((document) => row(document)));
  byId("u-shared").textContent = t`In ${service.chosenBase()}`;
  byId("u-shared").hidden = !found.data.length;
  byId("u-more").hidden = !found.next;
  byId("u-more").onclick = () => shared(found.next);
}

/** A name that none of the others has: of two files that are called alike, the second is "notes (2).md". */
function unlike(name, others) {
  const [, stem, ending] = /^(.+?)(\.[^.]*)?$/s.exec(name);
  for (let number = 1; ; number += 1) {
    const free = number === 1 ? name : `${stem} (${number})${ending ?? ""}`;
    if (!others.has(free)) return free;
  }
}

/** Add files that were chosen together, of which none is to replace another; one of an earlier choice is replaced. */
function add(files) {
  const names = new Set();
  for (const file of files) {
    const name = unlike(file.name, names);
    names.add(name);
    const bar = h("progress", { max: 1, "aria-label": t`Progress of ${name}` });
    const state = h("span", { class: "dim" }, t`in line`);
    byId("u-list").append(h("li", {}, h("span", { class: "name", title: name }, name), state, bar));
    unread += 1;
    line = line.then(() => send(file, name, bar, state)).finally(() => { unread -= 1; });
  }
}

async function send(file, name, bar, state) {
  state.textContent = t`reading`;
  sending = name;
  const earlier = (await service.remembered()).some((one) => one.file === name && one.references === one.whole);
  let replaced = false;
  let failed = "";
  let notes = "";
  let written = 0;
  let empty = ""; // why nothing was there to be read
  try {
    for await (const step of api.remember(file, name)) {
      if (step.outcome === "failed") failed = step.message;
      else if (step.outcome === "read") [notes, empty] = [step.message, !written && step.report.skipped[0]?.why];
      else if (step.outcome === "writing") {
        bar.value = step.done / step.references;
        state.textContent = t`${step.done} of ${memories(step.references)}`;
      } else {
        written += step.references;
        replaced ||= earlier && step.outcome === "stored";
      }
    }
  } catch (error) {
    failed = error.message;
  }
  failed ||= empty;
  sending = "";
  bar.remove();
  const ready = replaced ? t`ready: ${memories(written)}, in place of the earlier ${name}` : t`ready: ${memories(written)}`;
  const done = failed ? plain(failed) : ready;
  state.textContent = notes ? `${done}; ${plain(notes)}` : done;
  state.className = failed ? "bad" : "good";
  await local();
}
