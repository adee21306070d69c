// The panel beside the text: the documents of this chat, and of one answer the memories it read and what that cost.

import { given, marked } from "./citations.js";
import { button, byId, h, memories, plain, redraw, round } from "./dom.js";
import { sourceOf } from "./thread.js";
import { t } from "./words.js";

const STATES = { // what each is called, and what it means
  fetched: [t`fetched`, t`from the service`],
  held: [t`held`, t`were on the device already`],
  late: [t`late`, t`came after the chunk had begun`],
  offline: [t`offline`, t`from this device itself`],
  failed: [t`failed`, t`could not be had`],
  skipped: [t`skipped`, t`not asked for`],
};

export const stateOf = (chunk) => (chunk.error && chunk.state !== "skipped" ? "failed" : chunk.state);

/** "Question", "Prompt, chunk 2", "Answer, chunk 2": what each chunk is called. */
export function names(chunks) {
  const prompt = chunks.filter((chunk) => !chunk.generated).length;
  return chunks.map((chunk, i) => {
    if (chunk.generated) return t`Answer, chunk ${i - prompt + 2}`;
    return prompt > 1 ? t`Prompt, chunk ${i + 1}` : t`Question`;
  });
}

const TIMES = "times";
const opened = new Set(); // texts that stay open while the panel is drawn anew, and the times
let drawn = {};

/** Draw the chunks of an answer. */
export function draw(answer) {
  const chunks = answer?.chunks ?? [];
  const key = [answer?.status, answer?.usage?.total_tokens, answer?.annotations?.length, ...chunks.map((chunk) => `${chunk.state}${chunk.read.length}`)].join();
  if (drawn.answer === answer && drawn.key === key) return; // as it is while tokens come
  drawn = { answer, key };
  const labels = names(chunks);
  const cards = chunks.map((chunk, i) => card(answer, chunk, labels[i]));
  let summary = t`Ask something: what is read for every 64 tokens is shown here.`;
  if (chunks.length) {
    const documents = new Set(chunks.flatMap((chunk) => chunk.read.map((memory) => memory.document_key))).size;
    summary = documents > 1 ? t`${documents} documents read.` : documents ? t`1 document read.` : t`No document read.`;
  } else if (answer) summary = answer.status === "waiting" ? t`Looking for memories…` : t`This answer read no memories.`;
  redraw(byId("timeline"), h("p", { class: "dim summary" }, summary), h("ol", { class: "chunks" }, cards), measured(answer, chunks, labels) ?? "");
}

/** The documents that the answers of a chat read, each once. ask: called with one of this device to ask about it. */
export function drawDocuments(answers, isLocal, ask) {
  const all = answers.flatMap((answer) => answer.chunks ?? []).flatMap((chunk) => chunk.read).filter((memory) => !memory.refused);
  const found = new Map(all.filter((memory) => memory.knowledge_base !== "conversation").map((memory) => [`${memory.knowledge_base}/${memory.document_key}`, memory]));
  byId("in-chat").hidden = !found.size;
  byId("in-chat-count").textContent = t`Documents in this chat: ${found.size}`;
  byId("in-chat-list").replaceChildren(...[...found.values()].map((memory) => {
    const source = sourceOf(memory);
    const about = isLocal(memory) ? button("ask", t`Ask about ${source}`, () => ask({ key: `${memory.knowledge_base}: ${memory.document_key}`, source })) : null;
    return h("li", {}, h("span", { class: "name", title: memory.document_key }, source), about);
  }));
}

/** What an answer cost and where the time of its memories went, for those who press it. */
function measured(answer, chunks, labels) {
  const each = chunks.map((chunk, i) => [labels[i], times(chunk)]).filter(([, spent]) => spent);
  const lines = [[cost(answer)], ...each.map(([label, spent]) => [h("b", {}, label), ` ${spent}`])].filter(([first]) => first);
  if (!lines.length) return null;
  const made = h("details", { class: "dim times", open: opened.has(TIMES), ontoggle: () => (made.open ? opened.add(TIMES) : opened.delete(TIMES)) },
    h("summary", {}, t`Times`), lines.map((line) => h("p", {}, line)));
  return made;
}

function cost(answer) {
  const parts = [];
  if (answer?.speed) parts.push(t`${round(answer.speed, answer.speed < 10 ? 1 : 0)} tokens/s`);
  if (answer?.usage) parts.push(t`${answer.usage.completion_tokens} tokens`);
  if (answer?.timings) parts.push(t`first after ${round(answer.timings.first_token_ms)} ms`);
  return parts.join(" · ");
}

function card(answer, chunk, label) {
  const state = stateOf(chunk);
  const [name, meaning] = STATES[state] ?? [state, ""];
  const asked = chunk.query.replace(/\s+/g, " ").trim();
  return h(
    "li", { class: "chunk", "data-state": state },
    h("div", { class: "chunk-head" }, h("h3", {}, label), h("span", { class: "state", title: meaning }, name)),
    h("p", { class: "dim quote" }, t`asked with “${asked.length > 90 ? `…${asked.slice(-90)}` : asked}”`),
    h("ul", { class: "read" }, chunk.read.map((memory) => memoryRow(answer, chunk, memory))),
    problem(chunk),
  );
}

function memoryRow(answer, chunk, memory) {
  const parts = given(answer, memory);
  const passage = (answer.annotations ?? []).find((one) => one.file_citation.file_id === memory.memory_id)?.file_citation.passage;
  const id = `${chunk.chunk}/${memory.memory_id}`;
  const base = memory.knowledge_base === "conversation" ? t`an earlier turn of this conversation` : memory.knowledge_base;
  const row = h(
    "details", { class: "memory", open: opened.has(id), ontoggle: () => (row.open ? opened.add(id) : opened.delete(id)) },
    h("summary", {},
      h("span", { class: "title" }, memory.source ?? (memory.title || memory.document_key), h("small", { class: "dim" }, ` #${memory.chunk_number}`)),
      h("span", { class: "score dim", title: t`how near it is` }, round(memory.score, 2))),
    memory.refused ? h("p", { class: "bad" }, memory.refused) : null,
    parts.length ? h("p", { class: "gave" }, t`Gave ${parts.join(", ")}`) : null,
    h("p", { class: "reference", tabindex: "0" }, memory.text ? marked(memory.text, passage) : t`The service sent no text.`),
    h("p", { class: "dim key" }, base ? `${base}: ${memory.document_key}` : memory.document_key),
  );
  return h("li", {}, row);
}

function problem(chunk) {
  if (chunk.error) {
    const kept = chunk.kept ? ` ${t`Read on from before: ${memories(chunk.kept)}.`}` : "";
    return h("p", { class: "problem" }, `${plain(chunk.error).replace(/[.:]$/, "")}.${kept}`);
  }
  if (chunk.service_error) return h("p", { class: "problem" }, plain(chunk.service_error));
  return chunk.read.length ? null : h("p", { class: "dim" }, t`Nothing in the knowledge base is near.`);
}

/** Where the time of a chunk's memories went. */
function times({ times: spans, blocked_ms: blocked }) {
  const spent = {
    [t`waiting`]: spans.queue_ms, [t`embedding`]: spans.embed_ms, [t`network`]: Math.max(spans.call_ms - spans.server_ms, 0),
    [t`service`]: Math.min(spans.server_ms, spans.call_ms), [t`decompressing`]: spans.decompress_ms,
  };
  const parts = Object.entries(spent).filter(([, ms]) => ms > 0).map(([stage, ms]) => `${stage} ${round(ms, 1)}`);
  return parts.length ? t`${parts.join(", ")} ms; decoding stood still for ${round(blocked, 1)} ms` : "";
}
