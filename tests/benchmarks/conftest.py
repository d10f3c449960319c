from tests.trainers.conftest import (  # noqa: F401
    digits_in_memory,
    graphs_as_written,
    runs_without_pictures,
)
