"""Model archives: written streamed and deterministic, read without trust, unpacked once."""
