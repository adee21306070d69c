"""One answer: prompt, chunks, recalls, sampling and text, in `loop.py`."""
