"""Ways to run a step's forward."""
