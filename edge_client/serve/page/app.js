// The page: which conversation is open, what is being answered, and what every button and key does.

import * as answering from "./answering.js";
import * as api from "./api.js";
import { hide } from "./citations.js";
import { add, begun, branch, fresh, turnTo } from "./conversation.js";
import * as documents from "./documents.js";
import { byId, isComposing, plain, round, toast } from "./dom.js";
import * as preferences from "./preferences.js";
import * as scrolling from "./scrolling.js";
import * as service from "./service.js";
import * as settings from "./settings.js";
import * as sidebar from "./sidebar.js";
import * as store from "./store.js";
import * as thread from "./thread.js";
import * as timeline from "./timeline.js";
import { t, translatePage } from "./words.js";

const SAVE_MS = 1000;
const TYPED = "memory3.typed";
const DRAWERS = { conversations: ["menu", "(max-width: 760px)"], memories: ["show-memories", "(max-width: 1100px)"] };

let conversation = fresh();
let views = new Map();
let shown = null; // the answer in the panel of memories
let editing = null; // place of the question that is edited
let draft = ""; // what was typed before that
let about = null; // the document that questions are about: {key, source}
let context = 0; // tokens that a conversation may have
let citations = false; // whether the model says what each part of an answer was read from
const running = new Map(); // by id: conversations that are being answered, each with what ends its answer
const removed = new Set(); // ids of conversations that are not to be kept again
const awaited = new Set(); // ids of conversations whose answers another tab writes

const spoken = settings.chosen().language; // the choice that the page was drawn with

const isRunning = () => running.has(conversation.id);
const last = () => conversation.messages[conversation.leaf];

// Drawing

function draw() {
  views = thread.draw(conversation, { select, retry, goOn, edit, turn });
  drawState();
}

/** Draw all but the text, in which something may be selected. */
function drawState() {
  for (const view of views.values()) view.soon();
  panel(last()?.role === "assistant" ? last() : null);
  drawDocuments();
  byId("send").hidden = isRunning();
  byId("stop").hidden = !isRunning();
  drawContext();
  list();
}

const list = () => sidebar.draw(conversation.id, { busy: (id) => running.has(id), open, changed: changedElsewhere, remove });

function drawDocuments() {
  const answers = branch(conversation).map((at) => conversation.messages[at]).filter((message) => message.role === "assistant");
  timeline.drawDocuments(answers, service.isLocal, askAbout);
}

/** Questions are about a document from now on, null for all again. */
function askAbout(chosen) {
  about = chosen;
  byId("about").hidden = !about;
  byId("about-name").textContent = about ? t`About ${about.source}` : "";
  conceal();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  byId("question").placeholder = about ? t`What is this about?` : t`Ask something…`;
  byId("question").focus();
}

function drawContext() {
  const usage = branch(conversation).map((at) => conversation.messages[at].usage).findLast(Boolean);
  const used = usage?.total_tokens ?? 0;
  byId("context").hidden = !used || !context;
  byId("context-bar").value = context ? used / context : 0;
  byId("context-text").textContent = t`${round(used)} of ${round(context)} tokens`;
}

function panel(answer) {
  shown = answer;
  timeline.draw(answer);
}

/** The reader wants to see what an answer read. */
function select(answer) {
  panel(answer);
  reveal("memories");
}

// Conversations

async function open(id) {
  const found = running.get(id)?.conversation ?? (await kept(id));
  if (!found) return history.replaceState(null, "", addressOf(conversation)); // it was deleted
  enter(found, `#${id}`);
  scrolling.toEnd();
}

const addressOf = ({ id, messages }) => (messages.length ? `#${id}` : location.pathname);

/** A conversation as it is stored; an answer that no tab writes any more was broken off. */
async function kept(id) {
  const found = await store.get(id);
  const answers = found?.messages.flatMap((message) => [message, message.plain]) ?? [];
  const unfinished = answers.filter((answer) => answer?.status === "waiting" || answer?.status === "writing");
  if (!unfinished.length || awaited.has(id)) return found;
  if (await store.isAnswered(id)) {
    awaited.add(id);
    store.untilAnswered(id).then(() => {
      awaited.delete(id);
      changedElsewhere(id);
    });
  } else for (const answer of unfinished) answer.status = "broken";
  return found;
}

const begin = () => enter(fresh(), location.pathname);

/** Show a conversation; the browser's Back leads to the one before. */
function enter(found, address) {
  conversation = found;
  const isHere = new URL(address, location).href === location.href; // Back led here, or a link
  history[isHere ? "replaceState" : "pushState"](null, "", address);
  stopEditing();
  if (about) askAbout(null);
  draw();
  conceal();
  byId("question").focus();
}

async function remove(id) {
  drop(id);
  await store.remove(id);
  list();
}

/** A conversation is deleted, here or in another tab: its answer, which is kept every second, is not kept again. */
function drop(id) {
  removed.add(id);
  running.get(id)?.control.abort();
  if (id === conversation.id) begin();
  else list();
}

/** A conversation that is stored has changed: by another tab, or in the list. */
async function changedElsewhere(id) {
  if (running.has(id)) { // its messages are written here, its name and what the model is told may be changed anywhere
    const { title, system } = (await store.get(id)) ?? {};
    if (title !== undefined) Object.assign(running.get(id)?.conversation ?? {}, { title, system });
  }
  const found = id === conversation.id && !isRunning() ? await kept(id) : null;
  if (found && id === conversation.id) {
    conversation = found;
    draw();
  } else list();
}

// Answers

function send() {
  const question = byId("question").value.trim();
  if (!question || isRunning()) return;
  const parent = editing === null ? conversation.leaf : conversation.messages[editing].parent;
  byId("question").value = "";
  stopEditing();
  answer(parent, question);
}

function retry() {
  if (isRunning() || last()?.role !== "assistant") return;
  answer(last().parent, null, last().content ? null : last()); // one that holds nothing is no version to keep
}

/** Go on with the answer at `at`, which was cut. */
function goOn(at) {
  if (!isRunning()) answer(at, null, conversation.messages[at]);
}

function edit(at) {
  if (editing === null) draft = byId("question").value;
  editing = at;
  byId("question").value = conversation.messages[at].content;
  byId("editing").hidden = false;
  grow();
  byId("question").focus();
}

function stopEditing() {
  if (editing !== null) byId("question").value = draft;
  editing = null;
  byId("editing").hidden = true;
  grow();
}

/** A question that cannot be asked now goes back to where it was typed, before what is there. */
function giveBack(question) {
  byId("question").value = [question, byId("question").value].filter(Boolean).join("\n");
  grow();
}

function turn(at) {
  if (isRunning()) return;
  turnTo(conversation, at);
  draw();
  keep(conversation);
}

/** Answer the message at `parent`, or a question after it; or go on with an answer that is there. */
async function answer(parent, question = null, begunOne = null) {
  const mine = conversation;
  const control = new AbortController();
  running.set(mine.id, { conversation: mine, control });
  draw();
  const ran = await store.alone(mine.id, async () => {
    const known = await store.get(mine.id); // another tab may have gone on meanwhile
    if (known && known.changed > mine.changed) {
      toast(t`This conversation went on in another tab; here it is. Send again.`);
      running.delete(mine.id);
      await changedElsewhere(mine.id);
      giveBack(question);
    } else await run(mine, parent, question, begunOne, control.signal);
  }).catch((error) => toast(plain(error.message), "error"));
  if (ran === false) {
    toast(t`This conversation is being answered in another tab.`, "error");
    giveBack(question);
  }
  running.delete(mine.id);
  if (conversation === mine) drawState();
  else list();
  speak();
}

/** Begin anew in the language that was chosen meanwhile, once no answer is under way that this would end. */
function speak() {
  if (settings.chosen().language !== spoken && !running.size) location.reload();
}

async function run(mine, parent, question, begunOne, signal) {
  const chosen = settings.chosen();
  const bases = service.chosenBases();
  if (question !== null) {
    add(mine, parent, { role: "user", content: question, about });
    parent = mine.leaf;
    mine.title ||= question.slice(0, 60);
  }
  const made = begunOne ?? add(mine, parent, begun());
  if (!made.content) Object.assign(made, { chunks: [], annotations: [] });
  made.annotations ??= []; // one that was kept before there were any
  made.status = "waiting";
  made.error = "";
  made.unread = documents.waiting();
  const compared = begunOne ? begunOne.plain && !begunOne.plain.content : chosen.compare && chosen.mode !== "off";
  if (compared) made.plain = begun();
  const said = (end) => branch(mine, end).map((at) => mine.messages[at]);
  const told = (end) => answering.conversationFor(said(end), mine.system);
  // The answer that goes on is the end of what is said; without memory it is asked from the question on.
  const halves = [...(compared ? [[made.plain, "off", told(made.parent)]] : []), [made, chosen.mode, told(parent)]];
  const of = said(parent).findLast((message) => message.role === "user")?.about;
  await keep(mine);
  if (conversation === mine) {
    history.replaceState(null, "", `#${mine.id}`);
    draw();
    scrolling.toEnd();
  }
  let saved = performance.now();
  const changed = (answer) => () => {
    if (conversation === mine) {
      views.get(answer)?.soon();
      if (shown === answer) timeline.draw(answer);
    }
    if (performance.now() - saved > SAVE_MS) {
      saved = performance.now();
      keep(mine);
    }
  };
  // One after the other, so that each has the device to itself and the speeds are true.
  for (const [target, mode, messages] of halves) {
    if (signal.aborted) target.status = "stopped";
    else await answering.fill(target, answering.requestFor(messages, chosen, mode, bases, citations, of), signal, changed(target));
  }
  await keep(mine);
  if (removed.has(mine.id)) return;
  if (conversation === mine) drawDocuments();
  if (conversation === mine) announce(made);
  else toast(t`Answered: ${mine.title}`);
}

async function keep(mine) {
  if (!mine.messages.length || removed.has(mine.id)) return;
  mine.changed = Date.now();
  await store.put(structuredClone(mine));
}

/** Tell those who cannot see it that the answer is there. */
function announce(answer) {
  byId("end").textContent = "";
  byId("end").textContent = answer.status === "failed" ? plain(answer.error) : t`Answer: ${answer.content}`;
}

// The narrow page's drawers: what is out of sight cannot be reached, and an open one has the page to itself

function reveal(id) {
  byId(id).classList.add("open");
  settle();
  if (!byId("shade").hidden) byId(id).querySelector("[data-close]").focus();
}

function conceal() {
  const open = Object.keys(DRAWERS).find((id) => byId(id).classList.contains("open") && !byId("shade").hidden);
  for (const id of Object.keys(DRAWERS)) byId(id).classList.remove("open");
  settle();
  if (open) byId(DRAWERS[open][0]).focus();
}

function settle() {
  let over = false;
  for (const [id, [opener, narrow]] of Object.entries(DRAWERS)) {
    const [is, open] = [matchMedia(narrow).matches, byId(id).classList.contains("open")];
    byId(id).inert = is && !open;
    byId(opener).setAttribute("aria-expanded", String(open));
    over ||= is && open;
  }
  byId("shade").hidden = !over;
  document.querySelector("main").inert = over;
}

// Keys and buttons

/** What is typed has changed: it outlives a reload, and gets the room that it needs. */
function grow() {
  const field = byId("question");
  settings.writeOfTab(TYPED, field.value);
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, 200)}px`;
}

const KEYS = {
  "/": () => byId("question").focus(),
  n: begin,
  r: retry,
  c: () => byId("compare").click(),
  m: () => (reveal("memories"), byId("timeline").focus()),
  u: () => documents.open(),
  ",": () => byId("settings").click(),
  "?": () => byId("help-dialog").showModal(),
};

function key(event) {
  if (isComposing(event)) return;
  const typing = event.target.closest?.("input, textarea, select, dialog[open]");
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (editing !== null) stopEditing();
    else if (isRunning()) running.get(conversation.id).control.abort();
    else conceal();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key] || !settings.chosen().shortcuts) return;
  event.preventDefault();
  KEYS[event.key]();
}

/** Where the context is secure, the page opens without the app as well. */
function install() {
  const policy = window.trustedTypes?.createPolicy("worker", { createScriptURL: () => "worker.js" });
  navigator.serviceWorker?.register(policy ? policy.createScriptURL("") : "worker.js").catch(() => {}); // a certificate of our own
}

async function start() {
  translatePage();
  const tell = (system) => {
    conversation.system = system;
    keep(conversation);
  };
  preferences.prepare({ told: () => conversation.system, tell, closed: speak });
  documents.prepare(askAbout);
  sidebar.prepare({ drawn: list, open });
  service.watch((question) => isRunning() || answer(conversation.leaf, question));
  const clicks = {
    stop: (event) => event.detail > 1 || running.get(conversation.id)?.control.abort(), // a double click on “Send” ends on it
    new: begin, upload: documents.open, editing: stopEditing, about: () => askAbout(null),
    help: KEYS["?"], menu: () => reveal("conversations"), "show-memories": () => reveal("memories"), shade: conceal,
  };
  for (const [id, click] of Object.entries(clicks)) byId(id).addEventListener("click", click);
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", conceal);
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("question").value = settings.readOfTab(TYPED) ?? "";
  grow();
  byId("question").addEventListener("input", grow);
  byId("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
      event.preventDefault();
      send();
    }
  });
  byId("thread").addEventListener("scroll", hide);
  scrolling.prepare();
  document.addEventListener("keydown", key);
  window.addEventListener("resize", settle);
  settle();
  install();
  store.onChange((id, gone) => (gone ? drop(id) : changedElsewhere(id)));
  window.addEventListener("hashchange", () => {
    const id = location.hash.slice(1);
    if (id.startsWith("key=")) location.reload();
    else if (!id) begin();
    else if (id !== conversation.id) open(id);
  });
  draw();
  if (location.hash.slice(1)) await open(location.hash.slice(1));
  const health = await api.getJson("/health").catch(() => null);
  if (health) {
    const { name, precision } = health.model;
    ({ context, citations } = health.model);
    byId("model").textContent = t`${name}, ${precision}, ${round(context)} tokens`;
    drawContext();
  }
}

start();
