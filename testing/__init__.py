"""What tests, benchmarks and experiments share: processes of the programs, encoders without a model, a faulty network.

Nothing here is in a wheel; nothing here imports tests, `deploy` or `experiments`.
"""
