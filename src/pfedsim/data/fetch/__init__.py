"""How data sets come onto this machine."""
