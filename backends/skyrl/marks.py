"""By what a text says that it launches SkyRL, and which release of it."""

from orchestrator.library.releases import ReleaseFile, ReleaseMarks

MARKS = ReleaseMarks(
    hint=r"skyrl|trainer\.algorithm",
    aliases=("skyrl-train",),
    distributions=("skyrl",),
    files=(
        ReleaseFile("skyrl-train", "skyrl-train/pyproject.toml"),
        ReleaseFile("skyrl-train", "skyrl_train/pyproject.toml"),
    ),
)
