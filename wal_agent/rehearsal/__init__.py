"""Scripted models on loopback that speak the agents' APIs: for `doctor`, the self-test, `demo` and the tests."""
