"""Tests that authors of backends inherit. They need pytest: `pip install 'orch-rl[testing]'`."""
