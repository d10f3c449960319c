"""What makes tests fast: things made once, and graphs as they are written."""

import contextlib
import fcntl
import os
import pathlib
import pickle
import tempfile


def made_once(tmp_path_factory, name, make):
    """Return the result of `make(folder)`, which the first process makes.

    The others wait for it. Nobody may change what is in the folder.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    kept = root / f"{name}.pickle"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            folder = pathlib.Path(tempfile.mkdtemp(prefix=name, dir=root))
            kept.write_bytes(pickle.dumps(make(folder)))
    return pickle.loads(kept.read_bytes())


@contextlib.contextmanager
def plain_graphs():
    """Run graphs without TensorFlow's rewriting, which few updates repay."""
    import tensorflow as tf

    switch, options = "disable_meta_optimizer", tf.config.optimizer
    before = options.get_experimental_options().get(switch, False)
    options.set_experimental_options({switch: True})
    yield
    options.set_experimental_options({switch: before})
