// What the reader chose, kept in this browser (localStorage); and what a tab keeps until it is closed (sessionStorage).

const TAB = "sessionStorage";
const held = new Map(); // what the browser, which throws then, forbids to keep, or has no room for: until the page is closed

/** A value that was written, null where there is none. */
export function read(key, storage = "localStorage") {
  try { return held.get(key) ?? window[storage].getItem(key); } catch { return null; }
}

export function write(key, value, storage = "localStorage") {
  try {
    window[storage].setItem(key, value);
    held.delete(key);
  } catch {
    held.set(key, String(value));
  }
}

export const readOfTab = (key) => read(key, TAB);
export const writeOfTab = (key, value) => write(key, value, TAB);

const DEFAULTS = {
  mode: "overlap", temperature: 0, max_tokens: 512, base: "", also: null, compare: false, only_documents: false, shortcuts: true,
  language: "", // the browser's
};
const SETTINGS = "memory3.settings";
let kept = DEFAULTS;
try { kept = { ...DEFAULTS, ...JSON.parse(read(SETTINGS)) }; } catch { /* another program's */ }

export const chosen = () => kept;

export function choose(changed) {
  kept = { ...kept, ...changed };
  write(SETTINGS, JSON.stringify(kept));
}
