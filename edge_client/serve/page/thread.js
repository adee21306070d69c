// The conversation as it is read: questions, answers, and under each answer its chunks and what it cost.

import { byId, h, icon, memories, round, toast } from "./dom.js";
import { show } from "./markdown.js";
import { names, plain, stateOf } from "./timeline.js";

const ENDINGS = {
  stopped: "Stopped.",
  cut: "Cut at the longest length; settings have it.",
  broken: "The page was closed in the middle of this answer.",
};

/** One answer on the page. select: called with a chunk's number when the reader wants its memories. */
export class AnswerView {
  constructor(answer, { label = "", select, retry }) {
    this.answer = answer;
    this.text = h("div", { class: "markdown" });
    this.strip = h("div", { class: "strip" });
    this.note = h("p", { class: "note", hidden: true });
    this.cost = h("span", { class: "cost dim" });
    this.again = h("button", { class: "small", title: "Answer again (r)", onclick: retry }, icon("retry"), "Again");
    this.copy = h("button", { class: "small", title: "Copy the answer", onclick: () => this.toClipboard() }, icon("copy"), "Copy");
    this.select = select;
    this.drawn = null;
    this.element = h(
      "div", { class: "answer" },
      label ? h("h3", { class: "column" }, label) : null,
      this.text, this.note,
      h("div", { class: "below" }, this.strip, this.cost, h("span", { class: "grow" }), this.copy, this.again),
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
    if (this.drawn !== answer.content) show(this.text, answer.content);
    this.drawn = answer.content;
    this.element.dataset.status = answer.status;
    this.element.setAttribute("aria-busy", String(busy));
    this.drawNote(busy);
    this.drawStrip();
    this.cost.textContent = cost(answer);
    this.copy.hidden = this.again.hidden = busy;
    this.copy.disabled = !answer.content;
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
    } else if (answer.chunks.some((chunk) => chunk.state === "offline")) {
      [text, kind] = ["The service did not answer; read from the pack on this device.", "warn"];
    }
    this.note.textContent = text;
    this.note.className = `note ${kind}`;
    this.note.hidden = !text;
  }

  drawStrip() {
    const { chunks } = this.answer;
    if (this.strip.childElementCount !== chunks.length || chunks.some((c, i) => this.strip.children[i].dataset.state !== stateOf(c))) {
      const labels = names(chunks);
      this.strip.replaceChildren(...chunks.map((chunk, i) => {
        const title = `${labels[i]}: ${memories(chunk.read.length)}, ${stateOf(chunk)}`;
        return h("button", { class: "bead", "data-state": stateOf(chunk), title, "aria-label": title, onclick: () => this.select(i) },
          String(chunk.read.filter((memory) => !memory.refused).length));
      }));
    }
  }

  async toClipboard() {
    await navigator.clipboard.writeText(this.answer.content);
    toast("Copied.");
  }
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

/** Draw a whole conversation; returns the views of its answers: {answer: view}. */
export function draw(conversation, { select, retry }) {
  const views = new Map();
  const items = [];
  const { messages } = conversation;
  for (let i = 0; i < messages.length; i += 1) {
    const message = messages[i];
    if (message.role === "user") {
      items.push(h("li", { class: "user" }, h("div", { class: "said" }, message.content)));
      continue;
    }
    const last = i === messages.length - 1;
    const again = last ? retry : null;
    const columns = [];
    if (message.plain) columns.push([message.plain, "Without memory"]);
    columns.push([message, message.plain ? "With memory" : ""]);
    const made = columns.map(([answer, label]) => {
      const view = new AnswerView(answer, { label, select: (chunk) => select(answer, chunk), retry: again });
      if (!last || (message.plain && answer !== message)) view.again.remove();
      views.set(answer, view);
      return view.element;
    });
    items.push(h("li", { class: `assistant${message.plain ? " compared" : ""}` }, made));
  }
  byId("messages").replaceChildren(...items);
  byId("welcome").hidden = messages.length > 0;
  return views;
}
