"""CPU kernels: C++ compiled once per machine, called on torch's tensors and torch's threads."""
