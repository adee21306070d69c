"""The latency harness: each scenario measures something against a peer or a limit in the same run."""
