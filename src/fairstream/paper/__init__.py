"""The paper's experiments: which runs they take, and what came of them."""
