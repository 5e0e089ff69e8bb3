"""Real agent CLIs against scripted models on loopback: doctor's proofs, the demo and the tests."""
