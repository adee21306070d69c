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
  channel.postMessage({ id, gone: true });
}

/** Be told when another tab changed a conversation, or that it is gone. */
export const onChange = (told) => channel.addEventListener("message", ({ data }) => told(data.id, Boolean(data.gone)));

// One tab at a time answers in a conversation. Plain HTTP has no locks: there a mark is renewed every second, and means
// nothing once it is old.
const lockOf = (id) => `memory3.${id}`;
const markOf = (id) => `memory3.lock.${id}`;
const isMarked = (id) => Date.now() - Number(read(markOf(id))) < 3000;

/** Runs work if no other tab answers in this conversation; returns whether it ran. A closed tab lets go. */
export async function alone(id, work) {
  if (navigator.locks) {
    return navigator.locks.request(lockOf(id), { ifAvailable: true }, async (lock) => {
      if (lock) await work();
      return Boolean(lock);
    });
  }
  if (isMarked(id)) return false;
  const mark = () => write(markOf(id), Date.now());
  const release = () => write(markOf(id), 0);
  mark();
  const renewing = setInterval(mark, 1000);
  addEventListener("pagehide", release);
  try {
    await work();
  } finally {
    clearInterval(renewing);
    removeEventListener("pagehide", release);
    release();
  }
  return true;
}

/** Whether a tab answers in this conversation. */
export const isAnswered = async (id) =>
  navigator.locks ? (await navigator.locks.query()).held.some((lock) => lock.name === lockOf(id)) : isMarked(id);

/** Returns once no tab answers in this conversation. */
export async function untilAnswered(id) {
  if (navigator.locks) await navigator.locks.request(lockOf(id), () => {});
  else while (isMarked(id)) await new Promise((resolve) => setTimeout(resolve, 1000));
}
