"""Readers, one for each file format or layout."""
