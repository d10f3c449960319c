r"""Check that a server returns the outputs that its export recorded.

The warm-up file of the export contains the expected outputs.

Example:
    python -m trainers.serve_check --url=http://localhost:8501 \
        --export=saved_models/digits/export/saved_model/digits/1
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.serve_check")

import json
import logging
import math
import os
import sys

from absl import flags

from keras_vit.serving import UnavailableError, connect
from keras_vit.serving.tf_serving import read_version
from trainers.commands import (
    refuse_arguments,
    run_main,
    stop_at_once,
    user_errors,
)
from trainers.paths import as_path, write_atomically
from trainers.server_check import ServerReport, fill_report, say

FLAGS = flags.FLAGS
BATCH_SIZE = 1024  # More rows than any request of this command has.


def main(arguments):
    """Run the command."""
    # It warns of each attempt that fails; the error tells how many there were.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    with user_errors(ModuleNotFoundError), stop_at_once("Stopped."):
        refuse_arguments(arguments)
        if not math.isfinite(FLAGS.tolerance):
            raise ValueError(
                "`tolerance` must be finite. Received: "
                f"tolerance={FLAGS.tolerance}"
            )
        export = read_version(FLAGS.export)
        model = FLAGS.model_name or export.name
        client = connect(
            FLAGS.url,
            grpc=FLAGS.grpc,
            model=model,
            version=export.version,
            batch_size=BATCH_SIZE,
            concurrency=FLAGS.concurrency,
        )
        report = ServerReport()
        try:
            with client:
                fill_report(
                    report,
                    client,
                    export,
                    tolerance=FLAGS.tolerance,
                    num_requests=FLAGS.requests,
                    concurrency=FLAGS.concurrency,
                )
        except UnavailableError as error:
            if report.checks:
                print(report)
            say(f"Error: {error}")
            sys.exit(os.EX_UNAVAILABLE)
        print(report)
        if FLAGS.json:
            write_check(report, model, export.version)
    sys.exit(0 if report.passed else 1)


def write_check(report: ServerReport, model: str, version: int):
    """Write the report and the options to the file of --json."""
    content = {
        "server": FLAGS.url or FLAGS.grpc,
        "model": model,
        "version": version,
        "tolerance": FLAGS.tolerance,
        "concurrency": FLAGS.concurrency,
        "requests": FLAGS.requests,
        **report.to_json(),
    }
    write_atomically(as_path(FLAGS.json), json.dumps(content, indent=2))


if __name__ == "__main__":
    run_main(main)
