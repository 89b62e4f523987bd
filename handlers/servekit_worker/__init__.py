"""The runtime below our handlers, vendored into each archive. Never imports servekit."""
