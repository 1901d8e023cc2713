"""The version of this package, by itself: builds read it without importing the rest."""

__version__ = "0.1.0"
