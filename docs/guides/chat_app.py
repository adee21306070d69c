"""A chat application on the device, with the SDK: python docs/guides/chat_app.py [BUNDLE] [SERVICE]."""

import sys

from edge_client import EdgeModel, Finished, Memory3Error, Recalled, Token

with EdgeModel.open(*sys.argv[1:]) as model:
    session = model.session(system="You are a helpful assistant.")
    for line in sys.stdin:
        try:
            for event in session.send(line.strip(), max_tokens=128):
                if isinstance(event, Recalled) and event.recall.read:
                    print("reads", ", ".join(m.title for m in event.recall.read), file=sys.stderr)
                elif isinstance(event, Token):
                    print(event.text, end="", flush=True)
                elif isinstance(event, Finished):
                    print(f"\n{event.statistics.tokens_per_s:.0f} tokens/s", file=sys.stderr)
        except Memory3Error as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
