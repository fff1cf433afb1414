"""Reports: strategies compared on one trace, as a page or a picture."""
