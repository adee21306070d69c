"""A chat application on the device, with the SDK: python docs/guides/chat_app.py [BUNDLE] [SERVICE]."""

import sys

from edge_client import EdgeModel, Memory3Error

with EdgeModel.open(*sys.argv[1:]) as model:
    session = model.session(system="You are a helpful assistant.")
    for line in sys.stdin:
        try:
            answer = session.send(line.strip(), max_tokens=128)
            for delta in answer.deltas:
                print(delta, end="", flush=True)
            result = answer.result()
            print("\nread", ", ".join(m.title for m in result.memories) or "nothing", file=sys.stderr)
            print(f"{result.statistics.tokens_per_s:.0f} tokens/s", file=sys.stderr)
        except Memory3Error as error:
            print(f"{error.reason}: {error}", file=sys.stderr)
