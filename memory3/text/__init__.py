"""Text as models read it: chat templates, tokenizer, paragraphs, references, words to rank by, refusals.

In: strings and messages. Out: tokens, pieces of text, hashes of words.
"""
