"""What tests that ask or train a library share."""

from tests.backends.conftest import _no_interpreter_outlives_its_module

__all__ = ["_no_interpreter_outlives_its_module"]
