"""Does the library do what its dialect predicts? A run's own rollouts, replayed and compared.

proof     a run's rollout batches against the prediction: the worst difference of each quantity
run       one run on disk: its cell, its rollouts, the policy that it started from
small     a cell at a scale that its library trains here in seconds
checks    what must hold in any run: KL 0 at the first step, trainer = sampler, reward = scorer
real      a launch rehearsed with its real library
cells     the cells by which a release is proven
text      the tables
page      proofs kept beside a backend, and docs/proofs.md
"""
