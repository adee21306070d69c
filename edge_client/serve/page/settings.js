// What the reader chose, kept in this browser (localStorage).

// localStorage throws where the browser forbids it.
export const read = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
export const write = (key, value) => { try { localStorage.setItem(key, value); } catch { /* until the page is closed */ } };

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
