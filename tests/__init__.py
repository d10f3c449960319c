import pytest

# Its checks are asserts outside a test module.
pytest.register_assert_rewrite("tests.contracts")
