// Makes elements. Text is always text here: the one place where HTML is made of strings is markdown.js.

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
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** One of the icons that index.html holds. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  svg.setAttribute("aria-hidden", "true");
  return svg;
}

/** A short message at the edge that goes away by itself. */
export function toast(text, kind = "") {
  const shown = h("div", { class: `toast ${kind}` }, text);
  byId("toasts").append(shown);
  setTimeout(() => shown.remove(), kind === "error" ? 9000 : 4000);
}

/** "1 memory", "2 memories". */
export const memories = (number) => `${number} ${number === 1 ? "memory" : "memories"}`;

export const round = (value, digits = 0) =>
  Number(value ?? 0).toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
