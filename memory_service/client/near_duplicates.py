"""Near duplicates among documents that are ingested: MinHash over runs of five words (Broder 1997), by datasketch."""

from __future__ import annotations

from memory_model.errors import InvalidInput, MissingFile

_RUN_WORDS = 5
_PERMUTATIONS = 128


class NearDuplicates:
    """Remembers documents and finds the earlier one that a text nearly equals. In memory, about 2 KB a document."""

    def __init__(self, similarity: float) -> None:
        """similarity: share of runs of words that two texts must have in common (Jaccard), above 0 and below 1.

        Raises InvalidInput, and MissingFile where datasketch is not installed.
        """
        if not 0 < similarity < 1:
            raise InvalidInput(f"a similarity of {similarity} for near duplicates, expected between 0 and 1")
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise MissingFile(
                "dropping near duplicates needs datasketch: pip install 'memory3-service[duplicates]'"
            ) from error
        self._similarity = similarity
        self._sketch = MinHash
        self._index = MinHashLSH(threshold=similarity, num_perm=_PERMUTATIONS)
        self._sketches: dict[str, MinHash] = {}

    def twin(self, key: str, text: str) -> str:
        """Key of the document that `text` nearly equals, the most similar one; empty for none.

        A text without twin is remembered. The same key again is no duplicate but a newer version.
        """
        words = text.casefold().split()
        runs = {" ".join(words[n : n + _RUN_WORDS]) for n in range(max(len(words) - _RUN_WORDS, 0) + 1)}
        sketch = self._sketch(num_perm=_PERMUTATIONS)
        sketch.update_batch([run.encode() for run in sorted(runs)])
        if key in self._sketches:
            return ""
        alike = {other: sketch.jaccard(self._sketches[other]) for other in self._index.query(sketch)}
        best = max(alike, key=lambda other: alike[other], default="")
        if best and alike[best] >= self._similarity:
            return best
        self._index.insert(key, sketch)
        self._sketches[key] = sketch
        return ""
