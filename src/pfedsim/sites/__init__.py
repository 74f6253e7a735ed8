"""Runs across real sites: the data stay where they are, and so does what clients remember."""
