"""Several runs under one question."""
