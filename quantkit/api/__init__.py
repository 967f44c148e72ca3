"""One function per verb: where the parts are put together."""
