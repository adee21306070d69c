async (hostile) => {
  const text = hostile.join("\n\n");
  const chunk = {chunk: 0, generated: false, position: 0, from: 0, state: "fetched", error: "", service_error: "", kept: 0,
    query: text, blocked_ms: 1, times: {embed_ms: 1, call_ms: 2, server_ms: 1, decompress_ms: 1, inject_ms: 1, queue_ms: 0},
    read: hostile.map((h, i) => ({memory_id: String(i), document_key: h, title: h, chunk_number: 0, score: 0.5,
      held: true, refused: i === 1 ? h : "", text: h}))};
  const answer = {role: "assistant", content: text, status: "done", error: text, chunks: [chunk], timings: null,
    usage: null, without: false, speed: 1};
  const conversation = {id: "planted", title: hostile[1], created: 1, changed: 1,
    messages: [{role: "user", content: text}, answer]};
  const database = await new Promise((r) => { const q = indexedDB.open("memory3", 1); q.onsuccess = () => r(q.result); });
  const work = database.transaction("conversations", "readwrite");
  work.objectStore("conversations").put(conversation);
  await new Promise((r) => { work.oncomplete = r; });
}
