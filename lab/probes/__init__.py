"""Measure the meaning of `kl` in each release of each library, in the library's own code."""
