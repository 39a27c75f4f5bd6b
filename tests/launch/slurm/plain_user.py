"""Being somebody who is not root, for a test."""

import os
import subprocess
from functools import cache

NOBODY = 65534
NAMESPACE = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")


@cache
def no_plain_user() -> str:
    """Return why root's tests cannot run one as nobody; empty if they can."""
    if os.geteuid() != 0:
        return "all of these tests run as a plain user already"
    who = subprocess.run([*NAMESPACE, "id", "-u"], capture_output=True, text=True, check=False)
    if who.stdout.strip() != str(NOBODY):
        return f"needs a user namespace to be somebody else: {who.stderr.strip()}"
    return ""
