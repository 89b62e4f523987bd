"""The files that a proof runs on and the file that it leaves."""
