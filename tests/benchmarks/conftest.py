from tests.trainers.conftest import graphs_as_written  # noqa: F401
