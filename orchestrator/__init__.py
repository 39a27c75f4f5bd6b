"""orch: what does this KL choice really do, in my library, at my beta, at my asynchrony?"""

__version__ = "0.1.0"
