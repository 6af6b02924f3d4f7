"""The paged cache: who holds which block, what it contains, and the tensors themselves."""
