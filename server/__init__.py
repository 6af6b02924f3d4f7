"""The HTTP side of Slipstream: settings, command line, routes and the way from tokens to events.

Importing this package imports nothing else, so that `slipstream --help` answers at once; the
application is `server.app.create_app`. Nothing imports the server.
"""
