"""llama.cpp's server out of the package xllamacpp, which has no command of its own for it.

Run by the Python of an environment that has xllamacpp, with options of `llama-server`.
"""

import argparse
import signal

import xllamacpp


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    for name in ("ctx-size", "parallel", "threads", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.cpuparams.n_threads = options.threads
    params.port = options.port
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # It serves for as long as there is a reference to it.
    server = xllamacpp.Server(params)
    print(xllamacpp.get_system_info(), server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
