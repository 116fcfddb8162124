"""The arena: an embedded pool of ten tiny chat models and the six verifiable domains they duel on.

The experts' skill is latent by design: each was taught a mix of right answers and one deterministic misconception
per domain, so training can bring out what a model half knows. It shows that the game works, end to end; it says
nothing about how much a large language model would learn.
"""
