from tests.trainers.conftest import (  # noqa: F401
    graphs_as_written,
    runs_without_pictures,
)
