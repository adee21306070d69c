"""The device's HTTP server: an OpenAI-compatible API, routes for memories, and a page. Needs the extra `serve`."""
