// The panel beside the text: for every 64-token chunk the memories it read, from where, and what that cost.

import { byId, h, memories, plain, round } from "./dom.js";

const MEANINGS = {
  fetched: "from the service",
  held: "were on the device already",
  late: "came after the chunk had begun",
  offline: "from this device itself",
  failed: "could not be had",
  skipped: "not asked for",
  off: "not wanted",
};
const STAGES = [
  ["queue", "waiting"], ["embed", "embedding"], ["network", "network"], ["server", "service"],
  ["decompress", "decompressing"], ["inject", "into the slots"],
];

export const stateOf = (chunk) => (chunk.error && chunk.state !== "skipped" ? "failed" : chunk.state);

/** "Question", "Question 2", "Answer 1": what a chunk is called. */
export function names(chunks) {
  const prompt = chunks.filter((chunk) => !chunk.generated).length;
  let asked = 0;
  let written = 0;
  return chunks.map((chunk) => {
    if (chunk.generated) return `Answer, chunk ${(written += 1) + 1}`;
    asked += 1;
    return prompt > 1 ? `Prompt, chunk ${asked}` : "Question";
  });
}

const opened = new Set(); // texts that stay open while the panel is drawn anew

/** Draw the chunks of an answer; `chosen` is the one to show. */
export function draw(answer, chosen = null) {
  const place = byId("timeline");
  if (!answer) {
    place.replaceChildren(h("p", { class: "dim empty" }, "Ask something: what is read for every 64 tokens is shown here."));
    return;
  }
  if (!answer.chunks.length) {
    const why = answer.status === "waiting" ? "Looking for memories…" : "This answer read no memories.";
    place.replaceChildren(h("p", { class: "dim empty" }, why));
    return;
  }
  const labels = names(answer.chunks);
  const cards = answer.chunks.map((chunk, i) => card(answer, chunk, labels[i], i === chosen));
  place.replaceChildren(summary(answer), h("ol", { class: "chunks" }, cards));
  if (chosen !== null) cards[chosen]?.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

function summary(answer) {
  const counts = {};
  for (const chunk of answer.chunks) counts[stateOf(chunk)] = (counts[stateOf(chunk)] ?? 0) + 1;
  const documents = new Set(answer.chunks.flatMap((chunk) => chunk.read.map((memory) => memory.document_key)));
  const held = answer.timings ? `, decoding stood still for ${round(answer.timings.recall_ms, 1)} ms` : "";
  return h(
    "div", { class: "summary" },
    h("p", {}, Object.entries(counts).map(([state, n]) => h("span", { class: "state", "data-state": state }, `${n} ${state}`))),
    h("p", { class: "dim" }, `${documents.size || "No"} ${documents.size > 1 ? "documents" : "document"}${held}.`),
  );
}

function card(answer, chunk, label, chosen) {
  const state = stateOf(chunk);
  const read = chunk.read.map((memory) => memoryRow(chunk, memory));
  return h(
    "li", { class: `chunk${chosen ? " chosen" : ""}`, "data-state": state, id: `chunk-${chunk.chunk}` },
    h(
      "div", { class: "chunk-head" },
      h("h3", {}, label),
      h("span", { class: "state", "data-state": state, title: MEANINGS[state] ?? "" }, state),
    ),
    h("p", { class: "dim quote" }, excerpt(answer, chunk)),
    read.length ? h("ul", { class: "read" }, read) : null,
    problem(chunk),
    times(chunk),
  );
}

/** The words that this chunk asked with, the last of them. */
function excerpt(answer, chunk) {
  const text = chunk.query.replace(/\s+/g, " ").trim();
  return `asked with “${text.length > 90 ? `…${text.slice(-90)}` : text}”`;
}

function memoryRow(chunk, memory) {
  const id = `${chunk.chunk}/${memory.memory_id}`;
  const title = memory.title || memory.document_key;
  const score = Math.max(0, Math.min(1, memory.score));
  const meter = h("meter", { min: 0, max: 1, value: score, "aria-label": "score" });
  const head = h(
    "summary", {},
    h("span", { class: "title" }, title, h("small", { class: "dim" }, ` #${memory.chunk_number}`)),
    memory.knowledge_base === "conversation" ? h("span", { class: "tiny", title: "from a turn of this conversation that left the context" }, "earlier turn") : null,
    memory.held ? h("span", { class: "tiny", title: "was on the device already" }, "held") : null,
    memory.refused ? h("span", { class: "tiny bad" }, "refused") : null,
    meter,
    h("span", { class: "score" }, memory.score.toFixed(2)),
  );
  const row = h(
    "details", { class: "memory", open: opened.has(id), ontoggle: () => (row.open ? opened.add(id) : opened.delete(id)) },
    head,
    memory.refused ? h("p", { class: "bad" }, memory.refused) : null,
    h("p", { class: "reference" }, memory.text ?? "The service sent no text."),
    h("p", { class: "dim key" }, memory.knowledge_base ? `${memory.knowledge_base}: ${memory.document_key}` : memory.document_key),
  );
  return h("li", {}, row);
}

function problem(chunk) {
  if (chunk.error) {
    const kept = chunk.kept ? ` Read on from before: ${memories(chunk.kept)}.` : "";
    return h("p", { class: "problem" }, `${plain(chunk.error).replace(/[.:]$/, "")}.${kept}`);
  }
  if (chunk.service_error) return h("p", { class: "problem" }, plain(chunk.service_error));
  if (!chunk.read.length) return h("p", { class: "dim" }, "Nothing in the knowledge base is near.");
  return null;
}

function times(chunk) {
  const t = chunk.times;
  const spent = {
    queue: t.queue_ms, embed: t.embed_ms, network: Math.max(t.call_ms - t.server_ms, 0),
    server: Math.min(t.server_ms, t.call_ms), decompress: t.decompress_ms, inject: t.inject_ms,
  };
  const total = Object.values(spent).reduce((a, b) => a + b, 0);
  if (!total) return null;
  const bar = h("div", { class: "bar", "aria-hidden": "true" });
  for (const [stage] of STAGES) {
    const part = h("span", { "data-stage": stage });
    part.style.flexGrow = String(spent[stage]);
    bar.append(part);
  }
  const rows = STAGES.filter(([stage]) => spent[stage] > 0).map(([stage, name]) =>
    h("li", {}, h("span", { class: "swatch", "data-stage": stage }), name, h("b", {}, `${round(spent[stage], 1)} ms`)),
  );
  const id = `${chunk.chunk}/times`;
  const blocked = `${round(total, 0)} ms in the background`;
  const shown = h(
    "details", { class: "times", open: opened.has(id), ontoggle: () => (shown.open ? opened.add(id) : opened.delete(id)) },
    h("summary", {}, bar, h("span", { class: "dim" }, chunk.generated ? blocked : `${round(total, 0)} ms`)),
    h("ul", {}, rows, h("li", { class: "dim" }, "decoding stood still for", h("b", {}, `${round(chunk.blocked_ms, 1)} ms`))),
  );
  return shown;
}
