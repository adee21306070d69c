"""From a chunk's text to explicit memories: embed, call, check, decompress, in worker threads."""
