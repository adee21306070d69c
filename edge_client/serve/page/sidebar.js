// The list of conversations: open, export, delete.

import { byId, h, icon, toast } from "./dom.js";
import * as store from "./store.js";

/** Draw the list. current: id of the open one; open, removed: called with an id. */
export async function draw(current, { open, removed }) {
  const found = await store.all();
  const items = found.map((conversation) => {
    const mine = conversation.id === current;
    return h(
      "li", { class: mine ? "current" : null },
      h("button", { class: "open", "aria-current": mine ? "true" : null, onclick: () => open(conversation.id) }, conversation.title),
      h("button", { class: "icon", "aria-label": `Export ${conversation.title}`, title: "Export", onclick: () => save(conversation.id) }, icon("down")),
      h("button", {
        class: "icon", "aria-label": `Delete ${conversation.title}`, title: "Delete",
        onclick: async () => {
          if (!confirm(`Delete “${conversation.title}”?`)) return;
          await store.remove(conversation.id);
          removed(conversation.id);
        },
      }, icon("trash")),
    );
  });
  byId("list").replaceChildren(...items);
}

/** Hand the conversation out as a file. */
async function save(id) {
  const conversation = await store.get(id);
  const content = new Blob([JSON.stringify(conversation, null, 2)], { type: "application/json" });
  const link = h("a", { href: URL.createObjectURL(content), download: `${fileName(conversation.title)}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  toast("Exported.");
}

const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
