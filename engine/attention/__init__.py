"""Attention over the paged cache: the way in from a model, and one file per implementation."""
