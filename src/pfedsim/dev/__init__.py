"""For authors of methods and of pfedsim: conformance checks, anatomy of a method, benchmarks."""
