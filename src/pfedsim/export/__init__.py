"""Export clients' models to self-contained folders, load them, predict with them and push them to a hub."""
