"""Runs as tables and pictures for people."""
