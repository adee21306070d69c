"""One reader for each family of files; `memory3.formats` finds the one of a file."""
