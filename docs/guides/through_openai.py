"""The official client against `edge-client serve`: python docs/guides/through_openai.py [http://127.0.0.1:8080/v1]."""

import sys

from openai import OpenAI

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
client = OpenAI(base_url=base_url, api_key="none")  # the key of EDGE_CLIENT_SERVE_API_KEY, if one is set
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "What is the highest point of Benin?"}],
    max_tokens=32,
    stream=True,
    extra_body={"memory": {"mode": "exact"}},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    told = (chunk.model_extra or {}).get("memory") or {}
    for read in told.get("chunks", []):
        print(f"[chunk {read['chunk']}: {read['state']}]", file=sys.stderr)
print()
