// The list of conversations: search, open, rename, export, delete.

import { imported } from "./conversation.js";
import { button, byId, download, h, plain, redraw, toast } from "./dom.js";
import * as store from "./store.js";
import { t } from "./words.js";

const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";

/** Draw the list. current: id of the open one; busy: whether one is being answered; open, changed, remove: called with an id. */
export async function draw(current, { busy, open, changed, remove }) {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = (await store.all()).filter((conversation) => {
    const text = [conversation.title, ...conversation.messages.map((message) => message.content)].join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  redraw(byId("list"), ...found.map((conversation) => {
    const { id, title } = conversation;
    const mine = id === current;
    return h(
      "li", { class: `${mine ? "current" : ""} ${busy(id) ? "busy" : ""}` },
      h("button", { class: "open", "aria-current": mine ? "true" : null, onclick: () => open(id) }, title),
      button("pen", t`Rename ${title}`, async () => {
        const name = prompt(t`Name of the conversation`, title)?.trim();
        const known = name && await store.get(id); // another tab may have deleted it meanwhile
        if (!known) return;
        await store.put({ ...known, title: name });
        changed(id);
      }),
      button("down", t`Export ${title}`, async () => download(`${fileName(title)}.json`, await store.get(id))),
      button("trash", t`Delete ${title}`, () => confirm(t`Delete “${title}”?`) && remove(id)),
    );
  }));
}

/** Make search and import work. drawn: draws the list; open: called with the id of what was imported. */
export function prepare({ drawn, open }) {
  byId("search").addEventListener("input", drawn);
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    try {
      const conversation = imported(await file.text());
      await store.put(conversation);
      open(conversation.id);
    } catch (error) {
      toast(t`Not imported: ${plain(error.message)}`, "error");
    }
  });
}
