// What each part of an answer was read from: spans of its text, and the passage that one shows.

import { byId, h } from "./dom.js";
import { t } from "./words.js";

const LOOKS_AHEAD = 12; // characters of Markdown's own that one step may pass over

/** The memory that an annotation names, as a chunk of the answer read it. */
export const memoryOf = (answer, citation) =>
  answer.chunks.flatMap((chunk) => chunk.read).find((memory) => memory.memory_id === citation.file_citation.file_id);

/** What of the answer was read from a memory: its parts, in quotes. */
export const given = (answer, memory) =>
  (answer?.annotations ?? []).filter((one) => one.file_citation.file_id === memory.memory_id).map((one) => t`“${one.text}”`);

/** A text with the characters from `start` to `end` marked. */
export function marked(text, range) {
  const characters = [...text];
  const [start, end] = Array.isArray(range) ? range : [0, 0];
  const parts = [characters.slice(0, start), characters.slice(start, end), characters.slice(end)].map((part) => part.join(""));
  return [parts[0], parts[1] ? h("mark", {}, parts[1]) : null, parts[2]];
}

/** Make the spans of an answer, which is drawn in `place`, parts that show their passage. */
export function annotate(place, answer) {
  for (const earlier of place.querySelectorAll(".cited")) earlier.replaceWith(earlier.textContent);
  const spans = (answer.annotations ?? []).filter((one) => memoryOf(answer, one));
  if (!spans.length) return;
  const source = [...answer.content];
  const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT,
    (node) => (node.parentElement.closest("button, a") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT));
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let at = 0; // in the source, of which what is drawn is a part
  for (const node of nodes) {
    const pieces = [];
    for (const character of node.data) {
      let found = at;
      while (found < at + LOOKS_AHEAD && source[found] !== character) found += 1;
      const known = source[found] === character;
      const span = known ? spans.find((one) => one.start_index <= found && found < one.end_index) : pieces.at(-1)?.span;
      if (known) at = found + 1;
      if (pieces.at(-1)?.span === span && pieces.length) pieces.at(-1).text += character;
      else pieces.push({ span, text: character });
    }
    if (pieces.some((piece) => piece.span)) {
      node.replaceWith(...pieces.map(({ span, text }) => (span && text.trim() ? part(answer, span, text) : text)));
    }
  }
}

function part(answer, span, text) {
  const shows = () => show(made, answer, span);
  const made = h("span", {
    class: "cited", role: "button", tabindex: "0", "aria-describedby": "passage",
    onmouseenter: shows, onfocus: shows, onclick: shows, onmouseleave: hide, onblur: hide,
    onkeydown: (event) => {
      if (event.key === "Escape") hide();
      else if (event.key !== "Enter" && event.key !== " ") return;
      else shows();
      event.preventDefault();
      event.stopPropagation();
    },
  }, text);
  return made;
}

function show(part, answer, span) {
  const memory = memoryOf(answer, span);
  const { filename, passage } = span.file_citation;
  const box = byId("passage");
  box.replaceChildren(h("strong", {}, memory.source ?? filename),
    h("p", {}, memory.text ? marked(memory.text, passage) : t`Its text is not known.`));
  box.hidden = false;
  const { left, top, bottom } = part.getBoundingClientRect();
  const below = bottom + box.offsetHeight + 12 < innerHeight;
  box.style.left = `${Math.max(8, Math.min(left, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${below ? bottom + 6 : Math.max(8, top - box.offsetHeight - 6)}px`;
}

export function hide() {
  byId("passage").hidden = true;
}
