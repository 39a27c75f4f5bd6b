"""python -m tests.cluster start|stop|purge DIR: a cluster by hand."""

import sys
from pathlib import Path

from . import Cluster, missing


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in ("start", "stop", "purge"):
        print(__doc__, file=sys.stderr)
        return 2
    if fault := missing():
        print(fault, file=sys.stderr)
        return 1
    cluster = Cluster(Path(sys.argv[2]).absolute(), tied=False)
    getattr(cluster, sys.argv[1])()
    if sys.argv[1] == "start":
        print(f"export SLURM_CONF={cluster.conf} PATH=$PATH:/usr/sbin")
    return 0


if __name__ == "__main__":
    sys.exit(main())
