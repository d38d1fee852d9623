"""The version, which the package and its metadata read from here."""

__version__ = "0.3.0"
