// Keeps what the page is made of, so that its conversations can be read while the app does not run.

const FILES = [
  ".", "style.css", "icon.svg", "manifest.webmanifest", "answering.js", "api.js", "app.js", "citations.js", "conversation.js", "documents.js",
  "dom.js", "markdown.js", "preferences.js", "scrolling.js", "service.js", "settings.js", "sidebar.js", "store.js", "thread.js", "timeline.js",
  "vendor/marked.js", "words.js", "words/de.js", "words/zh.js",
];

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(caches.open("page").then((cache) => cache.addAll(FILES)));
});

self.addEventListener("fetch", (event) => {
  const { pathname } = new URL(event.request.url);
  if (event.request.method === "GET" && !pathname.startsWith("/v1/") && pathname !== "/health") event.respondWith(file(event.request));
});

/** As the app has it now; else as it was when it last ran. */
async function file(request) {
  const cache = await caches.open("page");
  const response = await fetch(request).catch(() => cache.match(request));
  if (!response) return Response.error();
  if (response.ok) await cache.put(request, response.clone());
  return response;
}
