"""The command line: a thin caller of quantkit.api."""
