"""Control of held work: renewals of its lease, progress, and requests to cancel."""
