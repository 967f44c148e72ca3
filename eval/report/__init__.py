"""The quality-vs-memory report: results in, a page, a table or JSON out; needs no torch."""
