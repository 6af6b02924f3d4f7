"""The HTTP routes; a handler puts parts together and holds no logic of its own."""
