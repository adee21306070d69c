// Makes elements. Text is always text here.

import { locale, t } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

/** The element with that id. */
export const byId = (id) => document.getElementById(id);

/** h("p", {class: "dim", onclick: f}, "text", child, …): an element; null children are left out. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const REACHED = "button, summary, input, textarea, a[href], [tabindex='0']";
const nameOf = (element) => element.getAttribute("aria-label") || element.title || element.textContent;

/** Replace what is in an element. Children that begin it as before are not touched, so that what is selected in them stays.
 * The focus stays on what has its name there, else where it was. */
export function redraw(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const at = [...place.querySelectorAll(REACHED)].indexOf(focused);
  const before = [...place.childNodes];
  const changed = children.findIndex((child, i) => child !== before[i]);
  const kept = changed < 0 ? children.length : changed;
  for (const node of before.slice(kept)) node.remove();
  place.append(...children.slice(kept));
  if (at < 0 || place.contains(focused)) return;
  const all = [...place.querySelectorAll(REACHED)];
  const near = (element) => Math.abs(all.indexOf(element) - at);
  const same = all.filter((element) => nameOf(element) === nameOf(focused)).sort((one, other) => near(one) - near(other));
  (same[0] ?? all[Math.min(at, all.length - 1)])?.focus();
}

/** Whether a key belongs to an input method. Safari ends the composition before Enter, which only the code 229 then tells. */
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

/** One of the icons that index.html holds. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  svg.setAttribute("aria-hidden", "true");
  return svg;
}

/** A button with an icon. text: beside it; without, `title` alone says what it does. */
export const button = (name, title, onclick, text = "") =>
  h("button", { type: "button", class: text ? "small" : "icon", title, "aria-label": text ? null : title, onclick }, icon(name), text || null);

/** A button that copies what `text` returns. Plain HTTP has no clipboard, so the old way stands behind it. */
export function copyButton(text, title) {
  const made = button("copy", title, () => copy(text()), t`Copy`);
  made.setAttribute("aria-label", made.title);
  return made;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h("textarea", { class: "hidden" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  toast(t`Copied.`);
}

/** Hand a value out as a JSON file. */
export function download(name, value) {
  const content = new Blob([JSON.stringify(value, null, 2)], { type: "application/json" });
  const link = h("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A short message at the edge that goes away by itself. */
export function toast(text, kind = "") {
  const shown = h("div", { class: `toast ${kind}` }, text);
  byId("toasts").append(shown);
  setTimeout(() => shown.remove(), kind === "error" ? 9000 : 4000);
}

/** "1 memory", "2 memories". */
export const memories = (number) => (number === 1 ? t`1 memory` : t`${number} memories`);

export const round = (value, digits = 0) =>
  Number(value ?? 0).toLocaleString(locale, { maximumFractionDigits: digits, minimumFractionDigits: digits });

/** An error without the name of its class and what the connection library said of it; commands in quotes. */
export function plain(error) {
  const text = error.replace(/^\w+: /, "").replace(/`([^`]*)`/g, "“$1”").replace(/\s*\([^()]*(\([^()]*\)[^()]*)*\)/, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
