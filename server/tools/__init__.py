"""Functions that a model calls: told to it in its prompt, and found in what it writes.

formats: how a family writes calls, one per file, each with its blocks and its grammar;
call_parser: finds them in a text that comes in pieces; prompting: what the prompt says.
"""
