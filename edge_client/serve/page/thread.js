// The conversation as it is read: questions, answers, and under each answer its chunks and what it cost.

import { annotate } from "./citations.js";
import { branch, versions } from "./conversation.js";
import { button, byId, copyButton, h, memories, plain, round } from "./dom.js";
import { show } from "./markdown.js";
import { names, stateOf } from "./timeline.js";

const ENDINGS = {
  stopped: "Stopped.",
  cut: "Cut at the longest length, which the settings hold: “Continue” goes on.",
  broken: "The page was closed in the middle of this answer: “Continue” goes on.",
};

/** One answer on the page. select: called with a chunk's number when the reader wants its memories. */
export class AnswerView {
  constructor(answer, { label = "", select, tools }) {
    this.answer = answer;
    this.text = h("div", { class: "markdown" });
    this.strip = h("div", { class: "strip" });
    this.note = h("p", { class: "note", hidden: true });
    this.cost = h("span", { class: "cost dim" });
    this.tools = h("span", { class: "tools" }, tools, copyButton(() => answer.content, "answer"));
    this.select = select;
    this.drawn = null;
    this.element = h(
      "div", { class: "answer" },
      label ? h("h2", { class: "column" }, label) : null,
      this.text, this.note,
      h("div", { class: "below" }, this.strip, this.cost, h("span", { class: "grow" }), this.tools),
    );
    this.update();
  }

  /** Draw what changed, at most once a frame. */
  soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.update();
    });
  }

  update() {
    const { answer } = this;
    const busy = answer.status === "waiting" || answer.status === "writing";
    const now = `${answer.annotations?.length ?? 0} ${answer.content}`;
    if (this.drawn !== now) {
      show(this.text, answer.content);
      annotate(this.text, answer);
    }
    this.drawn = now;
    this.element.dataset.status = answer.status;
    this.element.setAttribute("aria-busy", String(busy));
    this.drawNote(busy);
    this.drawStrip();
    this.cost.textContent = cost(answer);
    this.tools.hidden = busy;
    const goOn = this.tools.querySelector(".go-on");
    if (goOn) goOn.hidden = !answer.content || !["cut", "stopped", "broken", "failed"].includes(answer.status);
  }

  drawNote(busy) {
    const { answer } = this;
    const failed = answer.chunks.find((chunk) => chunk.error && chunk.state !== "skipped");
    let text = ENDINGS[answer.status] ?? "";
    let kind = "dim";
    if (answer.status === "failed") [text, kind] = [plain(answer.error), "bad"];
    else if (failed || (answer.without && !busy)) {
      text = `${without(answer.chunks)}: ${
        failed ? plain(failed.error).replace(/[.:]$/, "") : "the service did not answer"}.`;
      kind = "warn";
    } else if (answer.refused && answer.chunks.length && !busy) {
      const read = titles(answer.chunks);
      text = read.length ? `Not found in what was read: ${read.join(", ")}.` : "Nothing near it was found: choose another knowledge base above, or add a document.";
    } else if (answer.chunks.length && !busy && answer.chunks.every((chunk) => !chunk.error && !chunk.read.length)) {
      text = "Nothing near it in the knowledge base: the model answered from its weights.";
    } else if (answer.chunks.some((chunk) => chunk.state === "offline" && chunk.service_error && !chunk.service_error.startsWith("OFFLINE"))) {
      [text, kind] = ["The service did not answer; read from this device.", "warn"];
    }
    this.note.textContent = text;
    this.note.className = `note ${kind}`;
    this.note.hidden = !text;
  }

  drawStrip() {
    const { chunks } = this.answer;
    const now = chunks.map((chunk) => `${stateOf(chunk)}${chunk.read.length}`).join();
    if (this.strip.dataset.drawn === now) return; // a press is not to fall between two drawings
    this.strip.dataset.drawn = now;
    const labels = names(chunks);
    this.strip.dataset.label = titles(chunks).join(", ") || "nothing read";
    this.strip.replaceChildren(...chunks.map((chunk, i) => {
      const title = `${labels[i]}: ${memories(chunk.read.length)}, ${stateOf(chunk)}`;
      return h("button", { class: "bead", "data-state": stateOf(chunk), title, "aria-label": title, onclick: () => this.select(i) },
        String(chunk.read.filter((memory) => !memory.refused).length));
    }));
  }
}

/** The documents that an answer read, each once, the first three. */
function titles(chunks) {
  const all = [...new Set(chunks.flatMap((chunk) => chunk.read.filter((memory) => !memory.refused).map((memory) => memory.source ?? (memory.title || memory.document_key))))];
  return all.length > 3 ? [...all.slice(0, 3), `${all.length - 3} more`] : all;
}

/** What an answer did without: a memory that an earlier one had read is read on when no new one can be had. */
function without(chunks) {
  if (chunks.some((chunk) => chunk.read.length)) return "Some chunks went without new memories";
  const kept = Math.max(0, ...chunks.map((chunk) => chunk.kept));
  return kept ? `Answered without new memories, with ${memories(kept)} from before` : "Answered from the weights alone";
}

function cost(answer) {
  if (answer.status === "waiting") return "thinking…";
  const parts = [];
  if (answer.speed) parts.push(`${round(answer.speed, answer.speed < 10 ? 1 : 0)} tokens/s`);
  if (answer.usage) parts.push(`${answer.usage.completion_tokens} tokens`);
  if (answer.timings) parts.push(`first after ${round(answer.timings.first_token_ms)} ms`);
  return parts.join(" · ");
}

/** Which of the versions of a message this is, with the way to the others; nothing where it is the only one. */
function turner(conversation, at, turn) {
  const all = versions(conversation, at);
  if (all.length < 2) return null;
  const number = all.indexOf(at);
  const step = (name, title, to) => {
    const made = button(name, title, () => turn(all[to]));
    made.disabled = all[to] === undefined;
    return made;
  };
  return h("span", { class: "turner" }, step("left", "Version before", number - 1), `${number + 1}/${all.length}`,
    step("right", "Next version", number + 1));
}

/** Draw the branch of a conversation that is shown; returns the views of its answers: {answer: view}. */
export function draw(conversation, { select, retry, goOn, edit, turn }) {
  const views = new Map();
  const places = branch(conversation);
  const items = places.map((at, number) => {
    const message = conversation.messages[at];
    const turning = turner(conversation, at, turn);
    if (message.role === "user") {
      return h("li", { class: "user" }, h("div", { class: "said" }, message.content),
        h("div", { class: "tools" }, turning, button("pen", "Edit the question", () => edit(at))));
    }
    const last = number === places.length - 1;
    const columns = message.plain ? [[message.plain, "Without memory"], [message, "With memory"]] : [[message, ""]];
    const made = columns.map(([answer, label]) => {
      const again = last && answer === message;
      const more = again && h("span", { class: "go-on" }, button("right", "Continue the answer", () => goOn(at), "Continue"));
      const tools = answer === message ? [turning, more || null, again ? button("retry", "Answer again (r)", retry, "Again") : null] : [];
      const view = new AnswerView(answer, { label, select: (chunk) => select(answer, chunk), tools });
      views.set(answer, view);
      return view.element;
    });
    return h("li", { class: `assistant${message.plain ? " compared" : ""}` }, made);
  });
  byId("messages").replaceChildren(...items);
  byId("welcome").hidden = places.length > 0;
  return views;
}
