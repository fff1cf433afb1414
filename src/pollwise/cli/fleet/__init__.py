"""The commands `pollwise fleet …`."""
