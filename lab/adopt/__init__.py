"""`python -m lab adopt`: the tables of a release, read and measured from the release itself."""
