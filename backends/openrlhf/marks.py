"""Recognise OpenRLHF, and its release, in the text of a launch."""

from orchestrator.library.releases import ReleaseFile, ReleaseMarks

MARKS = ReleaseMarks(
    hint=r"openrlhf|train_ppo|--init_kl|--algo\.kl",
    distributions=("openrlhf",),
    repositories=("OpenRLHF",),
    files=(ReleaseFile("openrlhf", "version.txt", needs="openrlhf"),),
)
