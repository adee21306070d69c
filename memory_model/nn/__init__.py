"""The decoder in torch: its maths, writing memories, adapters, greedy answers. Knows no files but adapters."""
