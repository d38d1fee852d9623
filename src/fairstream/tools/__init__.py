"""Tools on top of the library: explanations of a change, a check of splits, a flavour of MLflow.

The library itself does not import them; the command line, pages, experiments and the service do.
"""
