"""NOUN -> TEXT: pure functions, each with a golden file under tests/golden/."""
