"""The lab, all with torch: decoder, tuning, codec fitting, evaluation, export of a bundle.

In: a base model and texts. Out: a model folder and a bundle, in the formats of `memory3`.
"""
