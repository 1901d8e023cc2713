"""The version of this package, by itself: builds read it without importing the rest."""

__version__ = "0.2.0"
