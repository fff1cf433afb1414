"""The version of Pollwise, for everything below the package itself."""

__version__ = "0.1.0"
