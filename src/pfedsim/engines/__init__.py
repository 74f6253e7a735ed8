"""Where clients' work is done. Engines differ in nothing else."""
