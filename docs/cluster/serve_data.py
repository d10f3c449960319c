"""Run a tf.data service, which decodes and augments for --data_service.

Example:
    python serve_data.py --port=5050                  # the first machine
    python serve_data.py --dispatcher=first:5050      # each further machine

All machines must see the data set at the same path as the training, and run
the same version of TensorFlow.
"""

import argparse
import signal
import socket

import tensorflow as tf

service = tf.data.experimental.service


def main():
    """Run the command until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default=socket.gethostname(), help="name of this machine")
    add("--port", type=int, default=5050, help="port of the dispatcher")
    add("--dispatcher", help="HOST:PORT of the first machine")
    options = parser.parse_args()
    address = options.dispatcher
    if address is None:
        config = service.DispatcherConfig(port=options.port)
        dispatcher = service.DispatchServer(config)
        address = f"{options.host}:{dispatcher.target.rpartition(':')[2]}"
    worker = service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=address, worker_address=f"{options.host}:%port%"
        )
    )
    print(f"--data_service=grpc://{address}", flush=True)
    # Python's own handler would wait until `join` ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    worker.join()


if __name__ == "__main__":
    main()
