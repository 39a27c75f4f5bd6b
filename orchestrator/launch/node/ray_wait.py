"""Wait for a Ray cluster: `python -c THIS_TEXT ADDRESS GPUS NODES SECONDS`.

Exits with 0 as soon as Ray counts that many GPUs on that many nodes, and with 1 after so many
seconds, with a sentence on stderr. It runs in the trainer's environment, so it imports ray and
nothing of orch.
"""

import sys
import time

import ray


def main() -> int:
    """Wait for the cluster. Return 0 once it is complete, 1 after so many seconds."""
    address, gpus, nodes, seconds = sys.argv[1], *map(float, sys.argv[2:5])
    deadline = time.monotonic() + seconds
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    while True:
        living = [node for node in ray.nodes() if node["Alive"]]
        counted = sum(node["Resources"].get("GPU", 0) for node in living)
        if counted >= gpus and len(living) >= nodes:
            return 0
        if time.monotonic() > deadline:
            sys.stderr.write(
                f"Ray did not come together within {seconds / 60:g} minutes "
                f"(site.options.start_minutes): it counts {counted:g} of {gpus:g} GPUs on "
                f"{len(living)} of {nodes:g} nodes\n"
            )
            return 1
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
