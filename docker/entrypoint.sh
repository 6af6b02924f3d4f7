#!/bin/sh
# Serve with the image's configuration. Arguments are those of `slipstream serve`; a first argument
# that names another command of the image runs that instead, as in `docker run IMAGE bash`.
set -eu

case "${1:-}" in
    "" | -* | */*) ;;
    serve) shift ;;
    *) command -v "$1" >/dev/null && exec "$@" ;;
esac
# exec: the server is process 1 and gets SIGTERM, so that `docker stop` lets streams finish.
exec slipstream serve --config "$CONFIG" --host "$HOST" --port "$PORT" "$@"
