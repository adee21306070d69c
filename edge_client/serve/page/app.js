// The page: which conversation is open, what is being answered, and what every button and key does.

import * as answering from "./answering.js";
import * as api from "./api.js";
import { byId, h, toast } from "./dom.js";
import * as preferences from "./preferences.js";
import * as service from "./service.js";
import * as sidebar from "./sidebar.js";
import * as store from "./store.js";
import * as thread from "./thread.js";
import * as timeline from "./timeline.js";
import * as uploads from "./uploads.js";

const IDEAS = [
  "What is the highest point of Benin?",
  "What are the national symbols of Maldives?",
  "What is the population of Turkey?",
];
const SAVE_MS = 1000;

let conversation = fresh();
let views = new Map();
let shown = { answer: null, chunk: null }; // in the panel of memories
let running = null; // AbortController of the answers under way

function fresh() {
  return { id: crypto.randomUUID(), title: "New chat", created: Date.now(), changed: Date.now(), messages: [] };
}

// Drawing

function draw() {
  views = thread.draw(conversation, { select, retry });
  const last = conversation.messages.at(-1);
  panel(last?.role === "assistant" ? last : null);
  list();
}

const list = () => sidebar.draw(conversation.id, { open, removed });

function panel(answer, chunk = null) {
  shown = { answer, chunk };
  timeline.draw(answer, chunk);
}

/** The reader wants to see what a chunk of an answer read. */
function select(answer, chunk) {
  panel(answer, chunk);
  reveal("memories");
}

function follow() {
  const place = byId("thread");
  if (place.scrollHeight - place.scrollTop - place.clientHeight < 160) place.scrollTop = place.scrollHeight;
}

function busy(is) {
  byId("send").hidden = is;
  byId("stop").hidden = !is;
}

// Conversations

async function open(id) {
  running?.abort();
  const found = await store.get(id);
  if (!found) return;
  conversation = found;
  for (const message of conversation.messages) {
    for (const answer of [message, message.plain]) {
      if (answer?.status === "waiting" || answer?.status === "writing") answer.status = "broken";
    }
  }
  location.hash = id;
  draw();
  byId("thread").scrollTop = byId("thread").scrollHeight;
  conceal();
  byId("question").focus();
}

function begin() {
  running?.abort();
  conversation = fresh();
  history.replaceState(null, "", location.pathname);
  draw();
  conceal();
  byId("question").focus();
}

function removed(id) {
  if (id === conversation.id) begin();
  else list();
}

/** Another tab changed a conversation. */
async function changedElsewhere(id) {
  if (id === conversation.id && !running) {
    const found = await store.get(id);
    if (found) {
      conversation = found;
      draw();
    }
  }
  list();
}

// Answers

function send() {
  const question = byId("question").value.trim();
  if (!question || running) return;
  byId("question").value = "";
  grow();
  const messages = [...conversation.messages, { role: "user", content: question }];
  answer(messages);
}

function retry() {
  if (running || conversation.messages.at(-1)?.role !== "assistant") return;
  answer(conversation.messages.slice(0, -1));
}

/** Answer the last of `messages`, and make them the conversation's. */
async function answer(messages) {
  const mine = conversation;
  const control = new AbortController();
  running = control;
  busy(true);
  const ran = await store.alone(mine.id, async () => {
    const known = await store.get(mine.id); // another tab may have gone on meanwhile
    if (known && known.changed > mine.changed) {
      toast("This conversation went on in another tab; here it is. Send again.");
      conversation = known;
      byId("question").value = messages.at(-1).content;
      draw();
      return;
    }
    await run(mine, messages, control.signal);
  });
  if (!ran) {
    toast("This conversation is being answered in another tab.", "error");
    byId("question").value = messages.at(-1).content;
  }
  if (running === control) running = null;
  busy(false);
  byId("speed").textContent = "";
}

async function run(mine, messages, signal) {
  const settings = store.settings();
  const bases = service.chosenBases();
  const made = answering.begun();
  if (settings.compare && settings.mode !== "off") made.plain = answering.begun();
  mine.messages = [...messages, made];
  if (mine.title === "New chat") mine.title = messages[0].content.slice(0, 60);
  await keep(mine);
  if (conversation === mine) {
    location.hash = mine.id;
    draw();
    byId("thread").scrollTop = byId("thread").scrollHeight;
  }
  let saved = performance.now();
  const changed = (answer) => () => {
    if (conversation === mine) {
      views.get(answer)?.soon();
      const now = [answer.status === "waiting", ...answer.chunks.map((chunk) => chunk.state)].join();
      if (shown.answer === answer && shown.drawn !== now) {
        shown.drawn = now;
        timeline.draw(answer, shown.chunk);
      }
      if (answer === made && made.speed) byId("speed").textContent = `${made.speed.toFixed(0)} tokens/s`;
      follow();
    }
    if (performance.now() - saved > SAVE_MS) {
      saved = performance.now();
      keep(mine);
    }
  };
  const ask = (target, mode) =>
    answering.fill(target, answering.requestFor(messages.map(asSaid), settings, mode, bases), signal, changed(target));
  await Promise.all([ask(made, settings.mode), ...(made.plain ? [ask(made.plain, "off")] : [])]);
  await keep(mine);
  if (conversation === mine) {
    timeline.draw(shown.answer, shown.chunk);
    list();
    announce(made);
  }
}

const asSaid = (message) => ({ role: message.role, content: message.content });

async function keep(mine) {
  mine.changed = Date.now();
  await store.put(structuredClone(mine));
}

/** Tell those who cannot see it that the answer is there. */
function announce(answer) {
  byId("end").textContent = "";
  byId("end").textContent = answer.status === "failed" ? answer.error : `Answer: ${answer.content}`;
}

// The narrow page's drawers

function reveal(id) {
  byId(id).classList.add("open");
  byId("shade").hidden = !matchMedia("(max-width: 1100px)").matches;
}

function conceal() {
  for (const id of ["conversations", "memories"]) byId(id).classList.remove("open");
  byId("shade").hidden = true;
}

// Keys and buttons

function grow() {
  const field = byId("question");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, 200)}px`;
}

const KEYS = {
  "/": () => byId("question").focus(),
  n: begin,
  r: retry,
  c: () => byId("compare").click(),
  m: () => (reveal("memories"), byId("timeline").focus()),
  u: () => byId("upload").hidden || uploads.open(),
  ",": () => byId("settings").click(),
  "?": () => byId("help-dialog").showModal(),
};

function key(event) {
  const typing = event.target.closest?.("input, textarea, select, dialog[open]");
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (running) running.abort();
    else conceal();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
}

async function start() {
  preferences.prepare();
  uploads.prepare();
  service.watch();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("question").addEventListener("input", grow);
  byId("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new").addEventListener("click", begin);
  byId("upload").addEventListener("click", uploads.open);
  byId("help").addEventListener("click", () => byId("help-dialog").showModal());
  byId("menu").addEventListener("click", () => reveal("conversations"));
  byId("show-memories").addEventListener("click", () => reveal("memories"));
  byId("shade").addEventListener("click", conceal);
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", conceal);
  document.addEventListener("keydown", key);
  store.onChange(changedElsewhere);
  window.addEventListener("hashchange", () => {
    const id = location.hash.slice(1);
    if (id && id !== conversation.id) open(id);
  });
  byId("ideas").replaceChildren(...IDEAS.map((idea) =>
    h("button", { type: "button", onclick: () => ((byId("question").value = idea), send()) }, idea)));
  const id = location.hash.slice(1);
  if (id && (await store.get(id))) await open(id);
  else draw();
  const health = await api.getJson("/health").catch(() => null);
  if (health) {
    const { name, precision, context } = health.model;
    byId("model").textContent = `${name}, ${precision}, ${context.toLocaleString("en")} tokens`;
  }
}

start();
