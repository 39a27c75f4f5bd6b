"""Compare a library's training with the prediction of its dialect, on a run's own rollouts.

proof     compare a run's rollout batches with the prediction: the worst difference by quantity
run       one run on disk: its cell, its rollouts, the policy that it started from
small     a cell at a scale that its library trains here in seconds
checks    invariants of any run: KL 0 at the first step, trainer = sampler, reward = scorer
real      rehearse a launch with its real library
script    read somebody's launch script as a cell and further arguments
cells     the cells that prove a release
text      tables
page      proofs stored beside a backend, and docs/proofs.md
"""
