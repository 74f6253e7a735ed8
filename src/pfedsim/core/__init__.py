"""What a federated run is made of: models as vectors, methods, the two loops."""
