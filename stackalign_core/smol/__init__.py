"""The pool ``smol``: a real language model, SmolLM2-135M-Instruct, small enough for a laptop's CPU."""
