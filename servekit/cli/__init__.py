"""WORDS: click in, text out, and the one error boundary. No decisions."""
