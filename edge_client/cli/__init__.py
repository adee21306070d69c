"""The command `edge-client`."""
