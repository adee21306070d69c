// A conversation is a tree: every message names the place of the one before it, `leaf` the end of the branch that is shown.

import { t } from "./words.js";

const uniqueId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export const fresh = () =>
  ({ id: uniqueId(), title: "", system: "", created: Date.now(), changed: Date.now(), messages: [], leaf: -1 });

/** A new, empty answer. */
export const begun = () => ({
  role: "assistant", content: "", status: "waiting", error: "", chunks: [], annotations: [], timings: null, usage: null,
  without: false, memory_error: "", refused: false, verdict: null, speed: 0,
});

/** Places of the messages that are shown, from the first to `end`. */
export function branch({ messages, leaf }, end = leaf) {
  const places = [];
  for (let at = end; at >= 0; at = messages[at].parent) places.unshift(at);
  return places;
}

/** Places of all messages that follow the same one: other wordings of a question, other answers to it. */
export const versions = ({ messages }, at) =>
  messages.flatMap((message, place) => (message.parent === messages[at].parent ? [place] : []));

/** Add a message after the one at `parent`, -1 for none; it is the last one shown. Returns it. */
export function add(conversation, parent, message) {
  conversation.leaf = conversation.messages.push({ ...message, parent }) - 1;
  return conversation.messages[conversation.leaf];
}

/** Show the branch through `at`, up to its newest end. */
export function turnTo(conversation, at) {
  const next = (place) => conversation.messages.findLastIndex((message) => message.parent === place);
  for (let place = at; place >= 0; place = next(place)) conversation.leaf = place;
}

/** An answer from a file. */
function answer(given) {
  const list = (all) => (Array.isArray(all) ? all : []);
  const annotations = list(given.annotations).filter((one) => one?.file_citation && typeof one.text === "string");
  return { ...begun(), status: "done", ...given, chunks: list(given.chunks), annotations };
}

/** A conversation from the text of a file, as a new one. Throws what is wrong with it. */
export function imported(text) {
  let value = null;
  try { value = JSON.parse(text); } catch { /* as if it held none */ }
  const all = Array.isArray(value) ? value : value?.messages;
  const messages = Array.isArray(all) ? all.filter((message) => message?.role !== "system") : [];
  if (!messages.length) throw new Error(t`the file holds no messages: choose one that “Export” made`);
  const read = messages.map((message, place) => {
    if (!["user", "assistant"].includes(message?.role) || typeof message.content !== "string") {
      throw new Error(t`message ${place + 1} of the file is not one of a user or an assistant`);
    }
    const parent = Number.isInteger(message.parent) && message.parent < place ? message.parent : place - 1;
    const { key, source } = message.about ?? {};
    const about = typeof key === "string" ? { key, source: String(source ?? key) } : null;
    return message.role === "user" ? { role: "user", content: message.content, about, parent }
      : { ...answer(message), plain: typeof message.plain?.content === "string" ? answer(message.plain) : undefined, parent };
  });
  const known = { title: String(value.title ?? read[0].content.slice(0, 60)), system: String(value.system ?? "") };
  return { ...fresh(), ...known, messages: read, leaf: read[value.leaf] ? value.leaf : read.length - 1 };
}
