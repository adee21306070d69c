"""Base models by name: a table of pinned files, and the user's cache of those that were fetched.

In: a name of `assets/catalogue.json`. Out: the path of a file whose SHA-256 was checked before it got its name.
"""
