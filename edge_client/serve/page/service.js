// The service behind the memories: whether it answers, and its knowledge bases.

import * as api from "./api.js";
import { byId, h, plain } from "./dom.js";
import * as store from "./store.js";

const EVERY_MS = 5000;
const MOST = 8; // that the app reads together
let bases = [];
let reachable = null;
let suggested = () => {};
let usual = { base: "", also: [] }; // what the app reads unless a request says otherwise

export const chosenBase = () => byId("base").value || store.settings().base;

const alsoWanted = () => store.settings().also ?? usual.also;

/** All that the next question reads: the chosen one first. */
export function chosenBases() {
  const also = alsoWanted().filter((name) => name !== chosenBase() && bases.some((base) => base.name === name));
  return chosenBase() ? [chosenBase(), ...also].slice(0, MOST) : [];
}

/** Look now, then again and again while the page is seen. ask: called with a suggestion that was chosen. */
export function watch(ask) {
  suggested = ask;
  look();
  setInterval(() => document.hidden || look(), EVERY_MS);
  document.addEventListener("visibilitychange", () => document.hidden || look());
  byId("base").addEventListener("change", () => {
    store.setSettings({ base: byId("base").value });
    drawAlso();
    suggest();
  });
  byId("also").addEventListener("click", () => byId("settings").click());
  byId("s-reset").addEventListener("click", () => {
    store.setSettings({ also: store.DEFAULTS.also });
    drawAlso();
  });
}

/** Ask the service how it is. */
export async function look() {
  let told;
  try {
    told = await api.getJson("/v1/service");
  } catch {
    tell("gone", "app not running", "The app on this device does not answer: start it again with “edge-client serve”.");
    reachable = null;
    return;
  }
  byId("upload").hidden = !told.uploads;
  if (!told.reachable) {
    tell("offline", "offline", `No service at ${told.address}: answers read no new memories until it is back.`);
    if (!bases.length) drawBases();
  } else {
    tell("online", "online", "");
    if (!reachable) await refresh();
  }
  reachable = told.reachable;
}

/** Read the list of knowledge bases anew; choose one if it is named. */
export async function refresh(choose = "") {
  try {
    const found = await api.getJson("/v1/knowledge_bases");
    [bases, usual] = [found.data, { base: found.default, also: found.also }];
  } catch (error) {
    tell("offline", "offline", plain(error.message));
  }
  if (choose) store.setSettings({ base: choose });
  drawBases();
  suggest();
}

/** Questions about documents of the chosen knowledge base. */
async function suggest() {
  const found = await api.documents(chosenBase(), "", 3).catch(() => ({ data: [] }));
  byId("ideas").replaceChildren(...found.data.map((document) => {
    const idea = `What is known about ${document.title || document.key}?`;
    return h("button", { type: "button", onclick: () => suggested(idea) }, idea);
  }));
}

function drawBases() {
  const wanted = store.settings().base || usual.base;
  const names = new Set([...(wanted ? [wanted] : []), ...bases.map((base) => base.name)]);
  const options = [...names].map((name) => {
    const base = bases.find((known) => known.name === name);
    const usable = !base || base.state === "ready";
    const size = base?.documents != null ? ` (${base.documents.toLocaleString("en")})` : "";
    const label = usable ? `${name}${size}` : `${name}: ${base.state}`;
    return h("option", { value: name, disabled: !usable, selected: name === wanted }, label);
  });
  byId("base").replaceChildren(...options);
  byId("u-bases").replaceChildren(...[...names].map((name) => h("option", { value: name })));
  drawAlso();
}

/** The other knowledge bases, to be read beside the chosen one. */
function drawAlso() {
  const others = bases.filter((base) => base.state === "ready" && base.name !== chosenBase());
  const chosen = alsoWanted();
  const change = (event) => {
    const { checked, value } = event.target;
    const rest = alsoWanted().filter((name) => name !== value);
    store.setSettings({ also: checked ? [...rest, value] : rest });
    drawCount();
  };
  const boxes = others.map(({ name }) =>
    h("label", { class: "box" }, h("input", { type: "checkbox", value: name, checked: chosen.includes(name), onchange: change }), name));
  byId("s-also").replaceChildren(byId("s-also").firstElementChild, ...boxes);
  byId("s-also").hidden = !boxes.length;
  drawCount();
}

function drawCount() {
  const also = chosenBases().slice(1);
  byId("also").textContent = `+ ${also.length}`;
  byId("also").title = `Also read: ${also.join(", ")}`;
  byId("also").setAttribute("aria-label", byId("also").title);
  byId("also").hidden = !also.length;
}

function tell(state, text, banner) {
  const pill = byId("service");
  if (pill.dataset.state !== state) {
    pill.dataset.state = state;
    pill.textContent = text;
  }
  if (byId("offline").textContent !== banner) byId("offline").textContent = banner;
  byId("offline").hidden = !banner;
}
