"""The controller as a job."""

import subprocess
from pathlib import Path

from orchestrator.search.slurm import controller_script
from orchestrator.spec.site_options import SlurmOptions


def test_the_script_runs_the_command_without_what_slurm_said_of_it(tmp_path: Path) -> None:
    log = tmp_path / 'it\'s a "log" $HOME ü'
    options = SlurmOptions(partition="gpu", time_limit_hours=1.5)
    script = tmp_path / "controller.sh"
    script.write_text(
        controller_script(["tune", "it's no spec.yaml", "a=$HOME"], "quick", log, options)
    )
    told = script.read_text()
    assert "#SBATCH --time=90\n" in told
    assert "#SBATCH --partition=gpu\n" in told
    assert "account" not in told
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_CONF": "/no/where"}
    done = subprocess.run(
        ["/bin/bash", "-x", script],
        env=environment,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    words = log.read_text()
    assert "it's no spec.yaml" in words
    assert "unset SLURM_JOB_ID" in words
    assert "unset SLURM_CONF" not in words
    assert "Traceback" not in words
