"""`python -m pollwise` is `pollwise`."""

from pollwise.cli import main

if __name__ == "__main__":
    main()
