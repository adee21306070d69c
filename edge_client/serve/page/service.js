// The service behind the memories: whether it answers, and its knowledge bases.

import * as api from "./api.js";
import { byId, h } from "./dom.js";
import * as store from "./store.js";
import { plain } from "./timeline.js";

const EVERY_MS = 5000;
let bases = [];
let reachable = null;
let usual = "";

export const knownBases = () => bases.map((base) => base.name);
export const chosenBase = () => byId("base").value || store.settings().base;

/** Look now, then again and again while the page is seen. */
export function watch() {
  look();
  setInterval(() => document.hidden || look(), EVERY_MS);
  document.addEventListener("visibilitychange", () => document.hidden || look());
  byId("base").addEventListener("change", () => store.setSettings({ base: byId("base").value }));
}

/** Ask the service how it is. */
export async function look() {
  let told;
  try {
    told = await api.getJson("/v1/service");
  } catch {
    tell("gone", "app not running", "The app on this device does not answer: start it again with edge-client serve.");
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
    [bases, usual] = [found.data, found.default];
  } catch (error) {
    tell("offline", "offline", plain(error.message));
  }
  if (choose) store.setSettings({ base: choose });
  drawBases();
}

function drawBases() {
  const wanted = store.settings().base || usual;
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
