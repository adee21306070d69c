// The page's words in the reader's language. A key is the English text, with {0}, {1} in place of values.

import * as settings from "./settings.js";

const LANGUAGES = { en: "en", de: "de", zh: "zh-Hans" }; // and how HTML names each
const ATTRIBUTES = ["aria-label", "title", "placeholder"];
const AS_IT_IS = "kbd, noscript, [translate=no]";

const language = (tag) => tag.split("-")[0];

/** What numbers and dates are written by: what the reader chose, else the browser's first language that the page has. */
export const locale = [settings.chosen().language, ...navigator.languages].find((tag) => Object.hasOwn(LANGUAGES, language(tag))) ?? "en";

const found = language(locale) === "en" ? null : await import(`./words/${language(locale)}.js`).catch(() => null);
const words = found?.default ?? {};

/** t`${used} of ${context} tokens`: the text in the reader's language, in English where there is no translation. */
export function t(parts, ...values) {
  const key = parts.reduce((text, part, i) => `${text}{${i - 1}}${part}`);
  return (words[key] ?? key).replace(/\{(\d)\}/g, (_, i) => values[i]);
}

/** Translate what index.html says, once. */
export function translatePage() {
  document.documentElement.lang = found ? LANGUAGES[language(locale)] : "en";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT,
    (node) => (node.parentElement.closest(AS_IT_IS) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT));
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const text = node.data.trim();
    node.data = node.data.replace(text, () => words[text.replace(/\s+/g, " ")] ?? text);
  }
  for (const name of ATTRIBUTES) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      const text = element.getAttribute(name);
      element.setAttribute(name, words[text] ?? text);
    }
  }
}
