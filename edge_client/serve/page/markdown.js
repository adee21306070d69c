// Markdown to elements. No HTML is made of strings: a tag in an answer is shown as it was written.

import { copyButton, h, redraw } from "./dom.js";
import { lexer } from "./vendor/marked.js";
import { t } from "./words.js";

const SAFE = /^(?:https?:|mailto:)/i;
const TAGS = { paragraph: "p", blockquote: "blockquote", strong: "strong", em: "em", del: "s", br: "br", hr: "hr" };

const inside = (token) => (token.tokens ? token.tokens.map(element) : (token.text ?? ""));

function element(token) {
  if (TAGS[token.type]) return h(TAGS[token.type], {}, inside(token));
  switch (token.type) {
    case "heading": return h(`h${Math.min(token.depth + 1, 6)}`, {}, inside(token));
    case "code": return h("div", { class: "code" }, copyButton(() => token.text, t`Copy the code`),
      h("pre", { tabindex: "0" }, h("code", {}, token.text)));
    case "codespan": return h("code", {}, token.text);
    case "list": return h(token.ordered ? "ol" : "ul", { start: token.start > 1 ? token.start : null }, token.items.map((item) =>
      h("li", {}, item.task ? (item.checked ? "☑ " : "☐ ") : null, inside(item))));
    case "table": return h("table", { tabindex: "0" },
      h("thead", {}, h("tr", {}, token.header.map((cell) => h("th", {}, inside(cell))))),
      h("tbody", {}, token.rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, inside(cell)))))));
    case "link": return SAFE.test(token.href)
      ? h("a", { href: token.href, target: "_blank", rel: "noopener noreferrer nofollow" }, inside(token)) : inside(token);
    case "space": case "def": case "checkbox": return null;
    default: return inside(token); // text; HTML and pictures as their words: loading one would tell a site that this was read
  }
}

/** The elements of a block, which is written from the side that its first letter is read from. */
function block(token) {
  const made = [element(token)].flat(Infinity).filter((part) => part !== null);
  for (const part of made) if (part instanceof Element) part.dir = "auto";
  return made;
}

const shown = new WeakMap(); // by element: its blocks, each with the token that it was made of

/** Show Markdown in an element. Blocks stay as they are while more text comes after them. */
export function show(place, text) {
  const before = shown.get(place) ?? [];
  const blocks = lexer(text, { gfm: true, breaks: true }).map((token, i) => {
    const source = JSON.stringify(token);
    return before[i]?.source === source ? before[i] : { source, made: block(token) };
  });
  shown.set(place, blocks);
  redraw(place, ...blocks.flatMap((block) => block.made));
}
