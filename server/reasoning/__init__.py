"""Telling a model's reasoning from its answer, by the markers of its family."""
