// Conversations in this browser (IndexedDB), told to its other tabs.

import { toast } from "./dom.js";
import { read, write } from "./settings.js";
import { t } from "./words.js";

const channel = new BroadcastChannel("memory3");
const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("memory3", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
opened.catch(() => {}); // whoever uses it hears of it
const unsaved = new Map(); // conversations that the browser refused to keep
let complained = false;

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
export async function all() {
  const kept = await run("readonly", (store) => store.getAll()).catch(() => []);
  const found = new Map([...kept, ...unsaved.values()].map((conversation) => [conversation.id, conversation]));
  return [...found.values()].sort((a, b) => b.changed - a.changed);
}

export const get = async (id) => unsaved.get(id) ?? run("readonly", (store) => store.get(id)).catch(() => undefined);

/** Keep a conversation; where the browser refuses, until the page is closed. */
export async function put(conversation) {
  try {
    await run("readwrite", (store) => store.put(conversation));
    unsaved.delete(conversation.id);
  } catch (error) {
    unsaved.set(conversation.id, conversation);
    if (!complained) toast(t`This browser keeps no conversations (${error?.message ?? t`storage is off`}): export what you need.`, "error");
    complained = true;
  }
  channel.postMessage({ id: conversation.id });
}

export async function remove(id) {
  unsaved.delete(id);
  await run("readwrite", (store) => store.delete(id)).catch(() => {});
  channel.postMessage({ id });
}

/** Be told when another tab changed a conversation. */
export const onChange = (told) => channel.addEventListener("message", (event) => told(event.data.id));

/** Runs work if no other tab answers in this conversation; returns whether it ran. A closed tab lets go. */
export async function alone(id, work) {
  if (navigator.locks) {
    return navigator.locks.request(`memory3.${id}`, { ifAvailable: true }, async (lock) => {
      if (lock) await work();
      return Boolean(lock);
    });
  }
  // Plain HTTP has no locks: a mark that is renewed every second, and means nothing once it is old.
  const [key, mark] = [`memory3.lock.${id}`, () => write(key, Date.now())];
  if (Date.now() - Number(read(key)) < 3000) return false;
  mark();
  const renewing = setInterval(mark, 1000);
  try {
    await work();
  } finally {
    clearInterval(renewing);
    write(key, 0);
  }
  return true;
}
