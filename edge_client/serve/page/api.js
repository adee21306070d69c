// Talks to the server this page came from, and to nobody else.

import { byId } from "./dom.js";
import { readOfTab, writeOfTab } from "./settings.js";
import { t } from "./words.js";

const KEY = "memory3.api-key";
const GONE = t`the app on this device does not answer: start it again with “edge-client serve”`;
const LOST = t`the connection ended too early: try again`;

// The address that `edge-client serve` prints holds the key, which is not to stay there.
const given = /^#key=(.+)$/.exec(location.hash);
if (given) {
  writeOfTab(KEY, given[1]);
  history.replaceState(null, "", location.pathname);
}

async function call(path, options = {}) {
  for (;;) {
    const key = readOfTab(KEY);
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(path, { ...options, headers, cache: "no-store" }).catch((error) => {
      throw error.name === "AbortError" ? error : new Error(GONE);
    });
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    if (response.status !== 401) throw new Error(body.error?.message ?? t`the server answered ${response.status}`);
    await askForKey();
  }
}

let asking = null;
/** Ask for the API key, once for all calls that want it. */
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    dialog.addEventListener("close", () => {
      writeOfTab(KEY, byId("key").value);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

export const getJson = async (path) => (await call(path)).json();

/** The server-sent events of a call, as values; ends at [DONE]. Throws an error that comes on the way. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new Error(LOST);
      });
      if (done) throw new Error(LOST);
      rest += value;
      const lines = rest.split("\n\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith(":")) continue; // a ping
        const data = line.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const found = JSON.parse(data);
        if (found.error) throw new Error(found.error.message);
        yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The chunks of an answer. */
export async function* chat(body, signal) {
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  yield* events(response);
}

/** A page of a knowledge base's documents: {data: [{key, title, references}], next: where the next page begins}. */
export const documents = (base, page = "") =>
  getJson(`/v1/knowledge_bases/${encodeURIComponent(base)}/documents?${new URLSearchParams({ page })}`);

/** Questions that the model answers from these knowledge bases ("atlas,firm"). */
export const suggestions = async (bases) =>
  (await getJson(`/v1/suggestions?${new URLSearchParams({ knowledge_base: bases })}`)).data;

/** The steps of remembering a file on this device by a name. */
export async function* remember(file, name) {
  const reader = file.stream().getReader();
  await reader.read().catch(() => { // else the browser says only that the request failed
    throw new Error(t`it cannot be read: it is a folder, or was moved or deleted`);
  });
  reader.cancel();
  const headers = { "Content-Type": "application/octet-stream" };
  const query = new URLSearchParams({ key: name.slice(-200) });
  yield* events(await call(`/v1/local?${query}`, { method: "POST", headers, body: file }));
}

/** The memories of a document of this device, in its order: [{chunk_number, text}]. */
export const memoriesOf = async ({ knowledge_base, key }) =>
  (await getJson(`/v1/local/memories?${new URLSearchParams({ knowledge_base, key })}`)).data;

/** Replace the text of a memory; an empty one removes it. */
export const correct = ({ knowledge_base, key }, chunk_number, text) =>
  call(`/v1/local/memories?${new URLSearchParams({ knowledge_base, key, chunk_number })}`, {
    method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ text }),
  });

export const forget = ({ knowledge_base, key }) =>
  call(`/v1/local?${new URLSearchParams({ knowledge_base, key })}`, { method: "DELETE" });
