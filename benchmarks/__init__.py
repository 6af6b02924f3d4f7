"""Measurements of the engine and of servers; every figure is a ratio within one run."""
