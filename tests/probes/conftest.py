"""The probes' processes are forks here too."""

from tests.backends.conftest import probes_fork as probes_fork
