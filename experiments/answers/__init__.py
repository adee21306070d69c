"""What answers are: their quality, refusals, verdicts and citations, in which languages, and in int4 on a device."""
