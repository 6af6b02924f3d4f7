"""What the Makefile calls; nothing here is imported by the product."""
