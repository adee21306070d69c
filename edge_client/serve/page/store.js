// Conversations in this browser (IndexedDB), told to its other tabs; settings in localStorage.

const channel = new BroadcastChannel("memory3");
const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("memory3", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function run(mode, work) {
  const database = await opened;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("conversations", mode);
    const request = work(transaction.objectStore("conversations"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

/** All conversations, the last used first. */
export const all = async () =>
  (await run("readonly", (store) => store.getAll())).sort((a, b) => b.changed - a.changed);

export const get = (id) => run("readonly", (store) => store.get(id));

/** Keep a conversation. */
export async function put(conversation) {
  await run("readwrite", (store) => store.put(conversation));
  channel.postMessage({ id: conversation.id });
}

export async function remove(id) {
  await run("readwrite", (store) => store.delete(id));
  channel.postMessage({ id });
}

/** Be told when another tab changed a conversation. */
export const onChange = (told) => channel.addEventListener("message", (event) => told(event.data.id));

/** Runs work if no other tab answers in this conversation; returns whether it ran. A closed tab lets go. */
export const alone = (id, work) =>
  navigator.locks.request(`memory3.${id}`, { ifAvailable: true }, async (lock) => {
    if (lock) await work();
    return Boolean(lock);
  });

export const DEFAULTS = {
  mode: "overlap", temperature: 0, top_p: 1, repetition_penalty: 1, max_tokens: 256, seed: "", system: "",
  base: "", also: null, compare: false, theme: "",
};
const SETTINGS = "memory3.settings";

export function settings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(SETTINGS) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export const setSettings = (changed) =>
  localStorage.setItem(SETTINGS, JSON.stringify({ ...settings(), ...changed }));
