"""What was measured in the libraries' own functions, read: the KL terms that each release can have.

`lab/probes` measures it anew.
"""
