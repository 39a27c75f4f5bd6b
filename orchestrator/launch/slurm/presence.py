"""Whether there is a cluster here: asked once, briefly, and only where SLURM's commands are."""

import os
import shutil
import subprocess
from functools import lru_cache

from orchestrator.errors import EnvironmentFault

_DEADLINE_SECONDS = 15.0


def is_here() -> bool:
    """Whether a SLURM controller answers. Costs nothing where `sbatch` is not on PATH.

    SLURM's commands without a configuration are not a cluster. Raises EnvironmentFault for a
    configured cluster that does not answer: to rehearse by mistake what a cluster was to train
    would be worse than to ask again.
    """
    sbatch, scontrol = shutil.which("sbatch"), shutil.which("scontrol")
    if sbatch is None or scontrol is None:
        return False
    return _answers(scontrol, os.environ.get("SLURM_CONF", ""))


@lru_cache(maxsize=8)
def _answers(scontrol: str, _conf: str) -> bool:
    try:
        asked = subprocess.run(
            [scontrol, "ping"],
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        told = f"{asked.stdout}\n{asked.stderr}"
    except (OSError, subprocess.TimeoutExpired) as error:
        told = str(error)
    if " is UP" in told:
        return True
    if "configuration source" in told:
        return False
    said = " ".join(told.split()) or "nothing"
    raise EnvironmentFault(
        "site.kind 'auto' cannot tell where to run: SLURM is configured here and its controller "
        f"does not answer (`scontrol ping` said: {said[:300]}). Try again when it does, or say "
        "site=local to rehearse on this machine, or site.kind=slurm to insist on the cluster"
    )
