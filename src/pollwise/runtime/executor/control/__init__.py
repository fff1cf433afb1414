"""What reaches work while it is held: renewals of its lease, progress and requests to cancel."""
