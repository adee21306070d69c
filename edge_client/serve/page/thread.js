// The conversation as it is read: questions, answers, and under each answer one line: what it was read from.

import { annotate, memoryOf } from "./citations.js";
import { branch, versions } from "./conversation.js";
import { button, byId, copyButton, h, memories, plain, redraw } from "./dom.js";
import { show } from "./markdown.js";
import { t } from "./words.js";

const ENDINGS = {
  stopped: t`Stopped.`,
  cut: t`Cut at the longest length, which the settings hold: “Continue” goes on.`,
  broken: t`The page was closed in the middle of this answer: “Continue” goes on.`,
};

const VERDICTS = {
  from_the_model: t`These are the model's own words: nothing in the documents gave them. Check them, or choose “Only from my documents” in the settings.`,
  not_in_what_was_read: t`The model found no answer in what it read. Ask in the document's own words, open what was read, or add a document.`,
  nothing_found: t`Nothing near the question was found: choose another knowledge base above, or add a document.`,
};

/** One answer on the page. select: called when the reader wants to see what it read. */
export class AnswerView {
  constructor(answer, { label = "", select, tools }) {
    this.answer = answer;
    this.text = h("div", { class: "markdown" });
    this.sources = h("button", { type: "button", class: "small sources", title: t`Show what was read`, onclick: select });
    this.note = h("p", { class: "note", hidden: true });
    this.tools = h("span", { class: "tools" }, tools, copyButton(() => answer.content, t`Copy the answer`));
    this.drawn = null;
    this.element = h(
      "div", { class: "answer" },
      label ? h("h2", { class: "column" }, label) : null,
      this.text, this.note,
      h("div", { class: "below" }, this.sources, h("span", { class: "grow" }), this.tools),
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
    this.drawSources(busy);
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
      const reason = failed ? plain(failed.error).replace(/[.:]$/, "") : t`the service did not answer`;
      text = t`${without(answer.chunks)}: ${reason}.`;
      kind = "warn";
    } else if (!busy && !text) {
      text = VERDICTS[answer.verdict] ?? "";
      if (text && answer.unread) text = t`${files(answer.unread)} not read yet when this was asked: ask again when all are ready.`;
      if (answer.memory_error && (text || answer.chunks.some((chunk) => chunk.state === "offline"))) {
        const own = answer.unread || answer.verdict === "from_the_model" ? text : ""; // what was not read may hold the answer
        [text, kind] = [missing(answer.memory_error, own), "warn"];
      }
    }
    this.note.textContent = text;
    this.note.className = `note ${kind}`;
    this.note.hidden = !text;
  }

  drawSources(busy) {
    const { answer } = this;
    const cited = citedBy(answer);
    const named = apart(cited.length ? cited : read(answer.chunks));
    const sources = shortened(named).join("; "); // a name may hold a comma
    const certain = cited.length || (answer.verdict === "grounded" && named.length === 1);
    const from = certain ? t`From: ${sources}` : t`Read: ${sources}`;
    const text = answer.status === "waiting" ? t`thinking…` : sources && from;
    if (this.sources.textContent !== text) this.sources.textContent = text; // a press is not to fall between two drawings
    this.sources.hidden = !text;
    this.sources.disabled = busy && !answer.chunks.length;
  }
}

/** Why not all that may hold the answer was read, and what else there is to say. */
function missing(error, more) {
  if (error.startsWith("UNREACHABLE")) return t`The service did not answer; read from this device. ${more}`.trim();
  return t`Not all memories could be had: ${plain(error).replace(/[.:]$/, "")}. ${more}`.trim();
}

const files = (count) => (count === 1 ? t`1 added file was` : t`${count} added files were`);

/** A memory of each document that parts of an answer were read from, those that gave most of it first. */
function citedBy(answer) {
  const given = new Map();
  for (const one of answer.annotations ?? []) {
    const { start_index: start, end_index: end, file_citation: { filename, score } } = one;
    if (!filename) continue;
    const memory = { ...memoryOf(answer, one), source: filename };
    const before = given.get(fileOf(memory) + filename)?.share ?? 0;
    given.set(fileOf(memory) + filename, { memory, share: before + (score * (end - start) || 0) });
  }
  return [...given.values()].sort((one, other) => other.share - one.share).map(({ memory }) => memory);
}

/** What tells the file of a memory from every other. */
const fileOf = ({ knowledge_base, file, document_key = "" }) =>
  JSON.stringify([knowledge_base, file || document_key.replace(/#(?:page|row|mail)=\d+$/, "")]);

/** What people call the documents of memories, each once; those of several files that are called alike with knowledge base or key. */
function apart(all) {
  const named = new Map();
  for (const memory of all) {
    const source = sourceOf(memory);
    const files = named.get(source) ?? new Map();
    named.set(source, files.set(fileOf(memory), files.get(fileOf(memory)) ?? memory));
  }
  return [...named].flatMap(([source, files]) => {
    const alike = [...files.values()];
    if (alike.length === 1) return [source];
    const several = new Set(alike.map((memory) => memory.knowledge_base)).size === alike.length;
    return alike.map(({ knowledge_base: base, document_key: key }) => [base, several ? source : key].filter(Boolean).join(": "));
  });
}

const shortened = (all) => (all.length > 3 ? [...all.slice(0, 3), t`${all.length - 3} more`] : all);

/** What people call a memory's document. */
export const sourceOf = (memory) => memory.source ?? (memory.title || memory.document_key);

/** The memories that an answer read. */
const read = (chunks) => chunks.flatMap((chunk) => chunk.read.filter((memory) => !memory.refused));

/** What an answer did without: a memory that an earlier one had read is read on when no new one can be had. */
function without(chunks) {
  if (chunks.some((chunk) => chunk.read.length)) return t`Some chunks went without new memories`;
  const kept = Math.max(0, ...chunks.map((chunk) => chunk.kept));
  return kept ? t`Answered without new memories, with ${memories(kept)} from before` : t`Answered from the weights alone`;
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
  return h("span", { class: "turner" }, step("left", t`Version before`, number - 1), `${number + 1}/${all.length}`,
    step("right", t`Next version`, number + 1));
}

/** Draw the branch of a conversation that is shown; returns the views of its answers: {answer: view}. */
export function draw(conversation, { select, retry, goOn, edit, turn }) {
  const views = new Map();
  const places = branch(conversation);
  const items = places.map((at, number) => {
    const message = conversation.messages[at];
    const turning = turner(conversation, at, turn);
    if (message.role === "user") {
      const about = message.about ? h("small", { class: "dim" }, t`About ${message.about.source}`) : null;
      return h("li", { class: "user" }, h("div", { class: "said" }, about, message.content),
        h("div", { class: "tools" }, turning, button("pen", t`Edit the question`, () => edit(at))));
    }
    const last = number === places.length - 1;
    const columns = message.plain ? [[message.plain, t`Without memory`], [message, t`With memory`]] : [[message, ""]];
    const made = columns.map(([answer, label]) => {
      const again = last && answer === message;
      const more = again && h("span", { class: "go-on" }, button("right", t`Continue the answer`, () => goOn(at), t`Continue`));
      const tools = answer === message ? [turning, more || null, again ? button("retry", t`Answer again (r)`, retry, t`Again`) : null] : [];
      const view = new AnswerView(answer, { label, select: () => select(answer), tools });
      views.set(answer, view);
      return view.element;
    });
    return h("li", { class: `assistant${message.plain ? " compared" : ""}` }, made);
  });
  redraw(byId("messages"), ...items);
  byId("welcome").hidden = places.length > 0;
  return views;
}
