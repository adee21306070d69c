"""What the service does with memories besides writing and reading them: counts their reads, drops those of the unread.

In: what retrievals find. Out: reads in the store, and documents without memories, which a read writes again.
"""
