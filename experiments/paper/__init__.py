"""The tables of the paper's section 7.1 and 7.3: published benchmarks with and without memory.

In: a folder of rows and textbooks that the user names. Out: a line a question and condition, and tables.
"""
