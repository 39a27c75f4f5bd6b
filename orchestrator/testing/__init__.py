"""Tests that authors of backends inherit. Needs pytest: `pip install 'orch-rl[testing]'`."""
