"""Text as models read it: chat templates, tokenizer, references, words to rank by, refusals.

In: strings and messages. Out: tokens, pieces of text, hashes of words.
"""
