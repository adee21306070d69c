// One answer from the request to its last event. Changes the answer object and says so; draws nothing.

import * as api from "./api.js";

/** What the model is told: system message, and every turn of which something is left. */
export function conversationFor(messages, system) {
  const said = system.trim() ? [{ role: "system", content: system.trim() }] : [];
  for (let i = 0; i < messages.length; i += 2) {
    const [question, reply] = [messages[i], messages[i + 1]];
    if (reply && !reply.content) continue; // it failed: as if it had not been asked
    said.push({ role: "user", content: question.content });
    if (reply) said.push({ role: "assistant", content: reply.content });
  }
  return said;
}

/** The request for an answer by these settings. citations: whether the app can give them; about: a document. */
export const requestFor = (messages, { temperature, max_tokens, only_documents }, mode, bases, citations, about) => ({
  messages, temperature, max_tokens,
  memory: {
    mode, texts: true, citations,
    ...(bases.length ? { knowledge_base: bases.join(",") } : {}),
    ...(mode === "off" ? {} : { only_documents, document: about?.key ?? "" }),
  },
});

/** Fill `answer` until it is over, whatever ends it; `changed` is called after every step. Never throws. */
export async function fill(answer, body, signal, changed) {
  const before = answer.chunks.length; // those of an answer that goes on
  const written = [...answer.content].length;
  let tokens = 0;
  let first = 0;
  try {
    for await (const event of api.chat(body, signal)) {
      for (const chunk of event.memory?.chunks ?? []) take(answer, { ...chunk, chunk: before + chunk.chunk });
      const choice = event.choices[0];
      if (choice?.delta.content) {
        first ||= performance.now();
        answer.status = "writing";
        answer.content += choice.delta.content;
        tokens += 1;
        const seconds = (performance.now() - first) / 1000;
        if (seconds > 0.2) answer.speed = (tokens - 1) / seconds;
      }
      for (const one of choice?.delta.annotations ?? []) {
        answer.annotations.push({ ...one, start_index: one.start_index + written, end_index: one.end_index + written });
      }
      if (choice?.finish_reason) {
        answer.status = choice.finish_reason === "length" ? "cut" : "done";
        answer.timings = event.timings;
        answer.without = event.memory.without_memory;
        answer.memory_error = event.memory.error;
        answer.refused = event.memory.refused;
        answer.verdict = event.memory.verdict ?? null;
        answer.speed = event.timings.tokens_per_s;
      }
      if (event.usage) answer.usage = event.usage;
      changed();
    }
  } catch (error) {
    if (signal.aborted) answer.status = "stopped";
    else Object.assign(answer, { status: "failed", error: error.message });
  }
  changed();
}

/** A chunk's memories; one that is told again was late the first time. */
function take(answer, chunk) {
  const place = answer.chunks.findIndex((known) => known.chunk === chunk.chunk);
  if (place >= 0) answer.chunks[place] = chunk;
  else answer.chunks.push(chunk);
}
