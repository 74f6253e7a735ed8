"""A run: its configuration, its folder, and how it is carried out."""
