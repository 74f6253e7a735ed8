"""Clients' models as folders that stand on their own: written, read, pushed, predicted with."""
