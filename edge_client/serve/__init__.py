"""The device's HTTP server: OpenAI's interface, memories beside it, and a page. Needs the extra `serve`."""
