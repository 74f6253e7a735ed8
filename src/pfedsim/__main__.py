"""`python -m pfedsim`."""

from pfedsim.cli import main

main()
