// What is read: the service's knowledge bases, of which some are chosen, and those of this device, always.

import * as api from "./api.js";
import { byId, h } from "./dom.js";
import * as settings from "./settings.js";
import { t } from "./words.js";

const EVERY_MS = 5000;
const MOST = 8; // that the app reads together
const STATES = { damaged: t`damaged`, unavailable: t`unavailable`, mismatched: t`mismatched` }; // of a knowledge base
let bases = [];
let local = []; // documents that this device remembers
let usual = { default: "", also: [] }; // what the app reads unless a request says otherwise
let drawn = "";
let suggested = () => {};
let suggesting = 0;

/** Whether a memory that was read is of a document of this device. */
export const isLocal = (memory) => local.some((one) => one.key === memory.document_key && one.knowledge_base === memory.knowledge_base);

export const chosenBase = () => byId("base").value || settings.chosen().base;

const alsoWanted = () => settings.chosen().also ?? usual.also;

/** All of the service that the next question reads: the chosen one first. */
export function chosenBases() {
  const also = alsoWanted().filter((name) => name !== chosenBase() && bases.some((base) => base.name === name));
  return chosenBase() ? [chosenBase(), ...also].slice(0, MOST) : [];
}

/** Look now, then again and again while the page is seen. ask: called with a suggestion that was chosen. */
export function watch(ask) {
  suggested = ask;
  remembered().then(look);
  setInterval(() => document.hidden || look(), EVERY_MS);
  document.addEventListener("visibilitychange", () => document.hidden || look());
  byId("base").addEventListener("change", () => {
    settings.choose({ base: byId("base").value });
    drawAlso();
    suggest();
  });
  byId("also").addEventListener("click", () => byId("settings").click());
}

async function look() {
  const found = await api.getJson("/v1/knowledge_bases").catch(() => null);
  if (!found) tell("gone", t`app not running`, t`The app on this device does not answer: start it again with “edge-client serve”.`);
  else if (found.error) tell("offline", t`offline`, t`No service at ${found.address}: answers read only what this device has until it is back.`);
  else tell("online", found.address ? t`online` : t`this device`, "");
  const now = JSON.stringify(found && [found.data, !found.error]);
  if (drawn === now) return;
  drawn = now;
  if (!found) return;
  usual = found;
  if (!found.error) bases = found.data; // while the service is away, those it had stay in the list
  drawBases();
  suggest();
}

/** The documents of this device, read anew. */
export async function remembered() {
  const before = JSON.stringify(local);
  local = (await api.getJson("/v1/local").catch(() => ({ data: [] }))).data;
  drawAlso();
  if (drawn && JSON.stringify(local) !== before) suggest();
  return local;
}

/** Questions that the model answers from the chosen knowledge base, or from this device; the last call counts. */
async function suggest() {
  const mine = (suggesting += 1);
  const ideas = await api.suggestions(chosenBases().join(",")).catch(() => []);
  if (mine !== suggesting) return;
  byId("ideas").replaceChildren(...ideas.map((idea) => h("button", { type: "button", onclick: () => suggested(idea) }, idea)));
}

function drawBases() {
  const wanted = settings.chosen().base || usual.default;
  const known = bases.some((base) => base.name === wanted) ? bases : [{ name: wanted, state: "ready" }, ...bases];
  byId("base").replaceChildren(...known.map(({ name, state }) => {
    const usable = state === "ready";
    return h("option", { value: name, disabled: !usable, selected: name === wanted }, usable ? name : `${name}: ${STATES[state] ?? state}`);
  }));
  drawAlso();
}

/** What is read beside the chosen one: those of this device, and others of the service that may be chosen. */
function drawAlso() {
  const own = [...new Set(local.map((document) => document.knowledge_base))].map((name) => t`${name} (on this device)`);
  const others = bases.filter((base) => base.state === "ready" && base.name !== chosenBase()).map((base) => base.name);
  const change = ({ target }) => {
    const rest = alsoWanted().filter((name) => name !== target.value);
    settings.choose({ also: target.checked ? [...rest, target.value] : rest });
    drawAlso();
  };
  const box = (name, options) => h("label", { class: "box" }, h("input", { type: "checkbox", value: name, ...options }), name);
  byId("s-also").replaceChildren(
    byId("s-also").firstElementChild,
    ...own.map((name) => box(name, { checked: true, disabled: true })),
    ...others.map((name) => box(name, { checked: chosenBases().includes(name), onchange: change })),
  );
  byId("s-also").hidden = !own.length && !others.length;
  const also = [...own, ...chosenBases().slice(1)];
  byId("also").textContent = `+ ${also.length}`;
  byId("also").title = t`Also read: ${also.join(", ")}`;
  byId("also").setAttribute("aria-label", byId("also").title);
  byId("also").hidden = !also.length;
}

function tell(state, text, banner) {
  for (const [id, shown] of [["service", text], ["offline", banner]]) {
    if (byId(id).textContent !== shown) byId(id).textContent = shown; // it is read out when it changes
  }
  byId("service").dataset.state = state;
  byId("service").title = text;
  byId("offline").hidden = !banner;
}
