"""Answers as benchmarks ask for them: their service and prompts, one answer's cost, and what is measured of many.

In: a bundle and a scenario's settings. Out: keys and samples. Scenarios choose what they compare.
"""
