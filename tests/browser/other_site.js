async (url) => {
  const body = JSON.stringify({messages: [{role: "user", content: "x"}], max_tokens: 1});
  const tries = {
    read: () => fetch(url + "/v1/models"),
    json: () => fetch(url + "/v1/chat/completions", {method: "POST", body, headers: {"Content-Type": "application/json"}}),
    simple: () => fetch(url + "/v1/chat/completions", {method: "POST", body, headers: {"Content-Type": "text/plain"}}),
    upload: () => fetch(url + "/v1/local?key=evil", {method: "POST", body: "evil", mode: "no-cors"}),
  };
  const found = {};
  for (const [name, run] of Object.entries(tries)) {
    found[name] = await run().then((r) => r.type === "opaque" ? "opaque" : String(r.status), () => "refused");
  }
  return found;
}
