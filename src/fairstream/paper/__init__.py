"""The paper's experiments: its protocol, the methods it compares with, the runs, and the report."""
