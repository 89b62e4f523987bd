"""NOUNS: frozen dataclasses and arithmetic. Standard library only; no I/O, no clock, no environment."""
