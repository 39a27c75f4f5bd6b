"""verl's entry as a launcher sees it: ray.init() with no address, a TaskRunner actor anywhere in
the cluster that writes the file log, workers on every GPU, shards and the tracker file at the end.

STANDIN=hold: sleeps after the first step. Prints what the workers saw.
"""

import json
import os
import sys
import time
from pathlib import Path

import ray


@ray.remote(num_gpus=1, num_cpus=1)
class Worker:
    """One rank of the policy, on a GPU of its own."""

    def where(self):
        return {
            "node": os.environ.get("SLURMD_NODENAME"),
            "gpu": os.environ["CUDA_VISIBLE_DEVICES"],
            "secret": os.environ.get("STANDIN_SECRET"),
            "python": sys.executable,
            "address": ray.util.get_node_ip_address(),
        }

    def save(self, folder, size, rank):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"model_world_size_{size}_rank_{rank}.pt").write_bytes(b"weights")


@ray.remote(num_cpus=1)
class TaskRunner:
    """verl's driver proper: its variables are those of the node's Ray, not the driver's."""

    def run(self, told):
        nodes, gpus = int(told["trainer.nnodes"]), int(told["trainer.n_gpus_per_node"])
        size = nodes * gpus
        workers = [Worker.remote() for _ in range(size)]
        seen = ray.get([worker.where.remote() for worker in workers])
        log = Path(os.environ["VERL_FILE_LOGGER_PATH"])
        steps = int(told["trainer.total_training_steps"])
        for step in range(1, steps + 1):
            data = {
                "training/global_step": step,
                "critic/score/mean": step / 10,
                "timing_s/step": 0.1,
            }
            with log.open("a") as file:
                file.write(json.dumps({"step": step, "data": data}) + "\n")
            if os.environ.get("STANDIN") == "hold":
                time.sleep(600)
        home = Path(told["trainer.default_local_dir"])
        actor = home / f"global_step_{steps}" / "actor"
        ray.get([w.save.remote(actor, size, rank) for rank, w in enumerate(workers)])
        (actor / "huggingface").mkdir()
        (actor / "huggingface" / "config.json").write_text("{}")
        (home / "latest_checkpointed_iteration.txt").write_text(str(steps))
        return seen


def main():
    pairs = (argument.partition("=") for argument in sys.argv[1:])
    told = {key: value.strip('"').replace('\\"', '"') for key, _, value in pairs}
    ray.init()
    print(json.dumps(ray.get(TaskRunner.remote().run.remote(told))), flush=True)


if __name__ == "__main__":
    main()
