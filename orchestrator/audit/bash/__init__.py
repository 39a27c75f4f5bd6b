"""Read shell scripts as data: a symbolic walk over their syntax tree. Nothing is ever run."""
