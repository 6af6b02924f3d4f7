"""From what a client asks of an answer to a grammar that the engine can follow.

constraint (api_schemas) -> sources (a grammar's text, checked) -> compiler (cached, off the event
loop) -> matching (what the engine calls). The grammar library is known in here only.
"""
