"""From pieces of text to wire objects: chunks of a stream, or one whole answer.

Both are made from the same pieces, so that the joined chunks are the whole answer. Event loop only.
"""
